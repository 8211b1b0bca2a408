package relay

import (
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestTry: this kernel has all that both tables need, and keeps nothing of the attempt.
func TestTry(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, f := range families() {
			if part, err := Try(f.Family.Family); err != nil {
				t.Errorf("%s: the kernel refuses %q: %v", f.Family.Family, part, err)
			}
		}
		if got := nstest.Self(t).Output("nft", "list", "ruleset"); got != "" {
			t.Errorf("left behind:\n%s", got)
		}
	})
}

// TestTryOtherTables: a table in use stays as it is.
func TestTryOtherTables(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self := nstest.Self(t)
		New(Config{Log: testLog(t), Links: func() []lb.Interface { return nil }}).Set(Desired{Expect: true})
		before := self.Output("nft", "list", "ruleset")
		if _, err := Try(lb.IPv4); err != nil {
			t.Error(err)
		}
		if after := self.Output("nft", "list", "ruleset"); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}
