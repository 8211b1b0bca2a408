package filter

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// everyExtras returns all combinations.
func everyExtras() (all []Extras) {
	for i := range 8 {
		all = append(all, Extras{Internal: i&1 != 0, Limits: i&2 != 0, Log: i&4 != 0})
	}
	return all
}

// TestTry: this kernel has all that the table needs, and keeps nothing of the attempt.
func TestTry(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, e := range everyExtras() {
			if part, err := Try(e); err != nil {
				t.Errorf("%+v: the kernel refuses %q: %v", e, part, err)
			}
		}
		if got := nstest.Self(t).Output("nft", "list", "ruleset"); got != "" {
			t.Errorf("left behind:\n%s", got)
		}
	})
}

// TestTryRefused: without the permission the kernel refuses even an empty table.
func TestTryRefused(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		nstest.Without(t, unix.CAP_NET_ADMIN, func() {
			if part, err := Try(Extras{}); part != "" || !errors.Is(err, unix.EPERM) {
				t.Errorf("%q, %v; want no part, and EPERM", part, err)
			}
		})
	})
}

// TestTryTriesAll: what is tried has every kind of part that a table in use can have, and an extra that is left out
// leaves out what it alone needs.
func TestTryTriesAll(t *testing.T) {
	all := Extras{Internal: true, Limits: true, Log: true}.sample().Parts()
	for _, part := range []string{"connlimit", "limit", "log", "redir", "reject", "ct", "lookup", "sets of intervals", "chains of type nat", "chains of type route"} {
		if !slices.Contains(all, part) {
			t.Errorf("%s is not tried", part)
		}
	}
	for part, e := range map[string]Extras{
		"log":                  {Internal: true, Limits: true},
		"connlimit":            {Internal: true, Log: true},
		"chains of type route": {Limits: true, Log: true},
	} {
		if slices.Contains(e.sample().Parts(), part) {
			t.Errorf("%+v tries %s", e, part)
		}
	}
}
