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
	is, err := read(t.sets)
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			t.log.Warn("filter that is there cannot be read", "err", err)
		}
		return
	}
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

// fromContent returns what makes the image of a table that is there; false if its rules are others.
func (img *image) fromContent(is *content) (c change, ok bool) {
	expected := make(map[string]int)
	for _, l := range img.layout.chains() {
		expected[l.name] = len(l.rules)
		if n, there := is.rules[l.name]; !there || n != len(l.rules) {
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
		n, there := is.rules[name]
		if !there {
			continue
		}
		if n != len(p.chain(name).rules) {
			return c, false
		}
		expected[name] = n
		delete(c.enter, name)
	}
	for name := range is.rules {
		if _, known := expected[name]; !known {
			c.leaveChains = append(c.leaveChains, name)
			for _, s := range is.sets {
				if strings.HasSuffix(s, "-"+name) {
					c.leaveSets = append(c.leaveSets, s)
				}
			}
		}
	}
	c.remove, c.add = differ(is.members, c.add)
	return c, true
}
