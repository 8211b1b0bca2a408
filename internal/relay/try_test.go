package relay

import (
	"testing"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestTry: this kernel has all that both tables need, and keeps nothing of the attempt.
func TestTry(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, f := range families() {
			if err := Try(f.name); err != nil {
				t.Errorf("%s: %v", f.name, err)
			}
		}
		if got := nstest.Self(t).Output("nft", "list", "ruleset"); got != "" {
			t.Errorf("left behind:\n%s", got)
		}
	})
}
