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
func (t *Table) adopt(want *image) error {
	t.layout = want.layout.table()
	is, err := t.layout.Read(true)
	if err == nil {
		t.library.renumber(is)
		var c change
		if c, err = want.changeFromContent(is, t.layout); err == nil {
			err = t.takeOver(want, &c)
		}
	}
	t.logNotAdopted(err)
	return err
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

// setParityFromContent sets the parities by those of an existing table, whose verdicts show which lists are odd.
func (img *image) setParityFromContent(is *nft.Content) {
	verdicts, ids := make(map[string]string), make(map[nft.SetElement]bool)
	for _, m := range is.Elements {
		switch {
		case strings.HasPrefix(m.Set, frontendsSet):
			verdicts[m.Key] = m.Value
		case leads(m):
			ids[m] = true
		}
	}
	for i := range img.frontends {
		d := &img.frontends[i]
		verdict := verdicts[d.key()]
		d.profile.odd = strings.Contains(verdict, oddSuffix)
		other := func(m nft.SetElement) bool { return !ids[m] }
		if verdict != nft.Accepted && slices.ContainsFunc(d.roles(nil), other) {
			d.profile.odd = !d.profile.odd
		}
	}
}

// changeFromContent returns the change from the content of an existing table to img; nft.ErrOther if its rules differ.
func (img *image) changeFromContent(is *nft.Content, l *nft.Layout) (c change, err error) {
	img.setParityFromContent(is)
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
	gone, add := difference(is.Elements, c.add)
	c.add = add
	// What packets may still look up stays for a while, unless it is in the way of what is wanted.
	wanted, used := make(map[nft.SetElement]bool), lists{}
	for _, m := range add {
		wanted[element(m.Set, m.Key, "")] = true
	}
	for i := range img.frontends {
		used.add(&img.frontends[i])
	}
	numbers := make(map[string]bool)
	for l := range used {
		numbers[string(nft.Native(l.number))] = true
	}
	for _, m := range gone {
		if leads(m) && !wanted[element(m.Set, m.Key, "")] || strings.HasPrefix(m.Set, sourcesSet) && !numbers[m.Key[len(m.Key)-numberSize:]] {
			c.removeLater = append(c.removeLater, m)
		} else {
			c.remove = append(c.remove, m)
		}
	}
	return c, nil
}

// leads reports whether an element leads from a frontend to one of its lists.
func leads(m nft.SetElement) bool {
	return strings.HasPrefix(m.Set, allowSet) || strings.HasPrefix(m.Set, denySet)
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
