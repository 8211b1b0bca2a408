package nft

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// unknown returns a rule with an expression that no kernel has.
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

// TestTry: the kernel refuses a layout because of one part. Nothing remains, and a real table of the same layout is not
// touched.
func TestTry(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self := nstest.Self(t)
		for _, tt := range []struct {
			name   string
			layout *Layout
			err    error
		}{
			{"all of it is known", sample(), nil},
			{"nothing but a table", &Layout{Table: sample().Table}, nil},
			{"a family that no kernel has", with(func(l *Layout) { l.Family = 77 }), unix.EOPNOTSUPP},
			{"a kind of chains that no kernel has", with(func(l *Layout) { l.Chains[1].Kind = "holdfast" }), unix.ENOENT},
			{"an expression that no kernel has, in a later rule", with(func(l *Layout) {
				l.Chains[1].Rules = append(l.Chains[1].Rules,
					slices.Concat(Meta(expr.MetaKeyL4PROTO, 6), unknown(), Meta(expr.MetaKeyL4PROTO, 6)))
			}), unix.ENOENT},
			{"an expression within another", with(func(l *Layout) {
				bad := Expr(&expr.Dynset{SrcRegKey: Reg, SetName: "plain", Exprs: []expr.Any{&expr.Counter{}}})
				l.Chains[0].Rules = append(l.Chains[0].Rules, slices.Concat(Meta(expr.MetaKeyL4PROTO, 6), bad))
			}), unix.ENODATA},
			{"a set with a flag that no kernel has", with(func(l *Layout) { l.Sets[2].Flags |= 1 << 20 }), unix.EOPNOTSUPP},
		} {
			err := tt.layout.Try()
			if !errors.Is(err, tt.err) || tt.err == nil && err != nil {
				t.Errorf("%s: %v; want %v", tt.name, err, tt.err)
			}
		}
		sample().make(t)
		before := self.Output("nft", "--stateless", "list", "ruleset")
		if err := sample().Try(); err != nil {
			t.Errorf("beside the real table: %v", err)
		}
		if after := self.Output("nft", "--stateless", "list", "ruleset"); after != before || strings.Contains(after, "-try") {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}
