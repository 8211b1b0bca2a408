package nft

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// unknown is an expression that no kernel has.
func unknown() Rule {
	var a attributes
	a.putText(unix.NFTA_EXPR_NAME, "holdfast")
	return Rule{expression(a)}
}

// with returns the sample with a change.
func with(change func(*Layout)) *Layout {
	l := sample()
	change(l)
	return l
}

// TestTry: the kernel refuses a layout because of one part, which Try names. Nothing stays, and a real table of the same
// layout is not touched.
func TestTry(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self := nstest.Self(t)
		for _, tt := range []struct {
			name   string
			layout *Layout
			part   string
			err    error
		}{
			{"all of it is known", sample(), "", nil},
			{"nothing but a table", &Layout{Table: sample().Table}, "", nil},
			{"a family that no kernel has", with(func(l *Layout) { l.Family = 77 }), "", unix.EOPNOTSUPP},
			{"a kind of chains that no kernel has", with(func(l *Layout) { l.Chains[1].Kind = "holdfast" }), "chains of type holdfast", unix.ENOENT},
			{"an expression that no kernel has, in a later rule", with(func(l *Layout) {
				l.Chains[1].Rules = append(l.Chains[1].Rules, slices.Concat(Meta(expr.MetaKeyL4PROTO, 6), unknown(), Meta(expr.MetaKeyL4PROTO, 6)))
			}), "holdfast", unix.ENOENT},
			{"an expression within another", with(func(l *Layout) {
				bad := Expr(&expr.Dynset{SrcRegKey: Reg, SetName: "plain", Exprs: []expr.Any{&expr.Counter{}}})
				l.Chains[0].Rules = append(l.Chains[0].Rules, slices.Concat(Meta(expr.MetaKeyL4PROTO, 6), bad))
			}), "counter", unix.ENODATA},
			{"a set with a flag that no kernel has", with(func(l *Layout) { l.Sets[2].Flags |= 1 << 20 }), "sets with concatenated keys", unix.EOPNOTSUPP},
		} {
			part, err := tt.layout.Try()
			if part != tt.part || !errors.Is(err, tt.err) || tt.err == nil && err != nil {
				t.Errorf("%s: %q, %v; want %q, %v", tt.name, part, err, tt.part, tt.err)
			}
		}
		sample().make(t)
		before := self.Output("nft", "--stateless", "list", "ruleset")
		if part, err := sample().Try(); err != nil {
			t.Errorf("beside the real table: %q: %v", part, err)
		}
		if after := self.Output("nft", "--stateless", "list", "ruleset"); after != before || strings.Contains(after, "-try") {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}

// TestRefused: the kernel names the elements of each list that it refuses, and of no other.
func TestRefused(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := with(func(l *Layout) { l.Sets[0].Apart = 1 })
		l.make(t)
		b := l.Batch()
		const each = elementsPerMessage + 100
		var list []SetElement
		for tail := range byte(4) {
			for i := range uint16(each) {
				key := string(binary.BigEndian.AppendUint16([]byte{2, 0, 0}, i)) + string(tail)
				if tail == 1 || tail == 3 {
					key = "longer" + key
				}
				list = append(list, SetElement{l.Sets[0].Name, Element{Key: key}})
			}
		}
		b.AddElements(l, list)
		var r *Refusal
		if err := b.Commit(); !errors.As(err, &r) {
			t.Fatalf("%v is no refusal", err)
		}
		got := map[byte]int{}
		for _, s := range r.Elements {
			for _, e := range s.Elements {
				got[e.Key[len(e.Key)-1]]++
			}
		}
		if len(got) != 2 || got[1] != each || got[3] != each {
			t.Errorf("refused are %v, want the elements that end in 1 and 3", got)
		}
		if is, err := l.List(l.Sets[0]); err != nil || len(is) != 1 {
			t.Errorf("%d elements are in force after a refused transaction (%v), want the one before", len(is), err)
		}
	})
}
