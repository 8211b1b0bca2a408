package filter

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// layoutChain begins the name of a chain without rules that says which rules the table has.
const layoutChain = "layout-"

// signature names the layout's rules, and those that profiles get: two processes agree on it if they would make
// the same table.
func (l layout) signature(chains []chain) string {
	h := sha256.New()
	for _, ipv6 := range []bool{false, true} {
		p := profile{ipv6: ipv6, restricted: true, limit: 1, rate: 1}
		p.allow.add(1)
		p.deny.add(1)
		for _, name := range p.chainNames() {
			chains = append(chains, p.chain(name))
		}
	}
	for _, c := range chains {
		fmt.Fprintln(h, c.name, c.kind, c.hook, c.priority, len(c.rules))
		for _, r := range c.rules {
			fmt.Fprintf(h, "%x\n", r)
		}
	}
	for _, s := range l.sets() {
		fmt.Fprintf(h, "%+v\n", s)
	}
	return fmt.Sprintf("%s%x", layoutChain, h.Sum(nil)[:8])
}

// adopt takes over the table that is there, if its rules are those that this process would make; what its sets
// lack or have too much is put right in one transaction. So a process that follows another opens nothing and
// counts on. It leaves t.actual nil where the table has to be made anew.
func (t *Table) adopt(want *image) {
	t.setsOf(want.layout)
	t.stale = nil
	is, err := read(t.sets)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			t.log.Warn("filter that is there cannot be read", "err", err)
		}
		return
	}
	want.followContent(is)
	c, ok := want.fromContent(is)
	if !ok {
		t.log.Info("filter that is there is another's, or of another version")
		return
	}
	if !c.empty() {
		if err := t.commit(&c); err != nil {
			t.log.Warn("filter that is there cannot be taken over", "err", err)
			return
		}
		t.log.Info("filter put right", "doors", len(want.doors), "added", len(c.add), "removed", len(c.remove))
	}
	t.hold(want)
}

// followContent is follow for a table that is there: which lists are odd stands in the verdicts.
func (img *image) followContent(is *content) {
	verdicts, lists := make(map[string]string), make(map[string][]member)
	for _, f := range families() {
		size := int(f.size) + 8
		for _, m := range is.members {
			switch m.set {
			case f.named(doorsSet):
				verdicts[m.key] = m.value
			case f.named(allowSet), f.named(denySet):
				lists[m.key[:size]] = append(lists[m.key[:size]], m)
			}
		}
	}
	for i := range img.doors {
		d := &img.doors[i]
		key := d.key()
		d.profile.odd = strings.Contains(verdicts[key], oddSuffix)
		if remove, add := differ(lists[key], d.lists(nil)); len(remove)+len(add) > 0 && verdicts[key] != accepted {
			d.profile.odd = !d.profile.odd
		}
	}
}

// fromContent returns what makes the image of a table that is there; false if its rules are others.
func (img *image) fromContent(is *content) (c change, ok bool) {
	expected := make(map[string]bool)
	for _, l := range img.layout.chains() {
		expected[l.name] = true
		if there := is.chains[l.name]; there == nil || there.rules != len(l.rules) {
			return c, false
		}
	}
	for _, s := range img.layout.sets() {
		if !slices.Contains(is.sets, s.name) {
			return c, false
		}
	}
	c = img.from(nil)
	for name, p := range c.enter {
		there := is.chains[name]
		if there == nil {
			continue
		}
		if there.rules != len(p.chain(name).rules) {
			return c, false
		}
		expected[name] = true
		delete(c.enter, name)
	}
	for name := range is.chains {
		if !expected[name] {
			c.leaveChains = append(c.leaveChains, name)
			for _, s := range is.sets {
				if strings.HasSuffix(s, "-"+name) {
					c.leaveSets = append(c.leaveSets, s)
				}
			}
		}
	}
	var gone []member
	gone, c.add = differ(is.members, c.add)
	for _, m := range gone {
		if strings.HasPrefix(m.set, allowSet) || strings.HasPrefix(m.set, denySet) {
			c.later = append(c.later, m)
		} else {
			c.remove = append(c.remove, m)
		}
	}
	return c, true
}
