package filter

import (
	"errors"
	"strings"
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
			if err := Try(e); err != nil {
				t.Errorf("%+v: %v", e, err)
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
			if err := Try(Extras{}); !errors.Is(err, unix.EPERM) {
				t.Errorf("%v; want EPERM", err)
			}
		})
	})
}

// TestTryTriesAll: what is tried has every kind of part that a table in use can have, and an extra that is left out
// leaves out what it alone needs.
func TestTryTriesAll(t *testing.T) {
	all := Extras{Internal: true, Limits: true, Log: true}.parts()
	for _, part := range []string{"connlimit", "limit", "log", "redir", "reject", "ct", "lookup", "nat", "route"} {
		if !strings.Contains(all, part+"\x00") {
			t.Errorf("%s is not tried", part)
		}
	}
	for part, e := range map[string]Extras{
		"log":       {Internal: true, Limits: true},
		"connlimit": {Internal: true, Log: true},
		"route":     {Limits: true, Log: true},
	} {
		if strings.Contains(e.parts(), part+"\x00") {
			t.Errorf("%+v tries %s", e, part)
		}
	}
}

// parts returns the kinds of chains and the expressions of what is tried, each with a zero at its end.
func (e Extras) parts() (out string) {
	for _, c := range e.sample().Chains {
		out += c.Kind + "\x00"
		for _, r := range c.Rules {
			for _, expression := range r {
				out += string(expression)
			}
		}
	}
	return out
}
