package filter

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// adopt takes over the existing table if it has the rules that this process would make, and corrects its elements in one
// transaction. So a restart opens nothing and keeps the counters. adopt leaves t.actual nil if the table must be
// replaced.
func (t *Table) adopt(want *image) {
	t.layout = want.layout.table()
	c, err := want.changeFromKernel(t.layout)
	if err == nil {
		err = t.takeOver(want, &c)
	}
	t.logNotAdopted(err)
}

// takeOver applies a change that makes the existing table equal to want, and records it as actual.
func (t *Table) takeOver(want *image, c *change) error {
	t.stale = nil
	if !c.empty() {
		if err := t.commit(c); err != nil {
			return err
		}
		t.log.Info("filter corrected", "frontends", len(want.frontends), "added", len(c.add), "removed", len(c.remove))
	}
	t.recordActual(want)
	return nil
}

// logNotAdopted logs why the existing table, if any, is not adopted.
func (t *Table) logNotAdopted(err error) {
	switch {
	case err == nil, errors.Is(err, os.ErrNotExist):
	case errors.Is(err, nft.ErrOther):
		t.log.Info("existing filter has other rules and is replaced")
	default:
		t.log.Warn("existing filter cannot be adopted", "error", err)
	}
}

// changeFromKernel lists the existing table and returns the change from it to img; nft.ErrOther if its rules differ.
func (img *image) changeFromKernel(l *nft.Layout) (c change, err error) {
	is, err := l.Read(true)
	if err != nil {
		return c, err
	}
	img.setParityFromContent(is)
	return img.changeFromContent(is, l)
}

// setParityFromContent is setParity for an existing table, whose verdicts show which lists are odd.
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

// changeFromContent returns the change from the content of an existing table to img; nft.ErrOther if its rules differ.
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

// clearTable deletes the content of the existing table. It keeps the wanted base chains and the interval sets, but not
// their rules and elements. It returns false if the table cannot be listed.
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
