package filter

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// adopt takes over the table that is there, if its rules are those that this process would make; what its sets
// lack or have too much is put right in one transaction. So a process that follows another opens nothing and
// counts on. It leaves t.actual nil where the table has to be replaced.
func (t *Table) adopt(want *image) {
	t.layout = want.layout.table()
	c, err := want.changeFromKernel(t.layout)
	if err == nil {
		err = t.takeOver(want, &c)
	}
	t.logNotAdopted(err)
}

// takeOver makes the table that is there hold an image, and takes it over.
func (t *Table) takeOver(want *image, c *change) error {
	t.stale = nil
	if !c.empty() {
		if err := t.commit(c); err != nil {
			return err
		}
		t.log.Info("filter put right", "frontends", len(want.frontends), "added", len(c.add), "removed", len(c.remove))
	}
	t.recordActual(want)
	return nil
}

// logNotAdopted logs why the table that is there is not taken over, if there is one.
func (t *Table) logNotAdopted(err error) {
	switch {
	case err == nil, errors.Is(err, os.ErrNotExist):
	case errors.Is(err, nft.ErrOther):
		t.log.Info("filter that is there is another's, or of another version")
	default:
		t.log.Warn("filter that is there cannot be taken over", "error", err)
	}
}

// changeFromKernel returns what makes the image of the table that is there; nft.ErrOther if its rules are others.
func (img *image) changeFromKernel(l *nft.Layout) (c change, err error) {
	is, err := l.Read(true)
	if err != nil {
		return c, err
	}
	img.setParityFromContent(is)
	return img.changeFromContent(is, l)
}

// setParityFromContent is follow for a table that is there: which lists are odd stands in the verdicts.
func (img *image) setParityFromContent(is *nft.Content) {
	verdicts, lists := make(map[string]string), make(map[string][]nft.SetElement)
	for _, f := range families() {
		size := int(f.Size) + 8
		for _, m := range is.Elements {
			switch m.Set {
			case f.named(frontendsSet):
				verdicts[m.Key] = m.Value
			case f.named(allowSet), f.named(denySet):
				lists[m.Key[:size]] = append(lists[m.Key[:size]], m)
			}
		}
	}
	for i := range img.frontends {
		d := &img.frontends[i]
		key := d.key()
		d.profile.odd = strings.Contains(verdicts[key], oddSuffix)
		if remove, add := difference(lists[key], d.lists(nil)); len(remove)+len(add) > 0 && verdicts[key] != nft.Accepted {
			d.profile.odd = !d.profile.odd
		}
	}
}

// changeFromContent returns what makes the image of a table that is there; nft.ErrOther if its rules are others.
func (img *image) changeFromContent(is *nft.Content, l *nft.Layout) (c change, err error) {
	c = img.changeFrom(nil)
	expected := make(map[string]bool)
	for _, c := range l.Chains {
		expected[c.Name] = true
	}
	for name, p := range c.newChains {
		if is.Chains[name] == nil {
			continue
		}
		if !is.Has(p.chain(name)) {
			return c, nft.ErrOther
		}
		expected[name] = true
		delete(c.newChains, name)
	}
	for name := range is.Chains {
		if !expected[name] {
			c.deleteChains = append(c.deleteChains, name)
			for _, s := range is.Sets {
				if strings.HasSuffix(s, "-"+name) {
					c.deleteSets = append(c.deleteSets, s)
				}
			}
		}
	}
	var gone []nft.SetElement
	gone, c.add = difference(is.Elements, c.add)
	for _, m := range gone {
		if strings.HasPrefix(m.Set, allowSet) || strings.HasPrefix(m.Set, denySet) {
			c.removeLater = append(c.removeLater, m)
		} else {
			c.remove = append(c.remove, m)
		}
	}
	return c, nil
}

// clearTable empties the table that is there but for base chains and sets of intervals that are wanted; these lose
// their rules and elements. False if it cannot be read.
func clearTable(b *nft.Batch, l *nft.Layout) bool {
	is, err := l.Outline(true)
	if err != nil {
		return false
	}
	b.Flush()
	for _, name := range is.Sets {
		if l.Set(name).Intervals() {
			b.FlushSet(name)
		} else {
			b.DeleteSet(name)
		}
	}
	for name := range is.Chains {
		if !slices.ContainsFunc(l.Chains, func(c nft.Chain) bool { return c.Name == name && c.Kind != "" }) {
			b.DeleteChain(name)
		}
	}
	return true
}
