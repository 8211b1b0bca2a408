package filter

import (
	"strings"
	"testing"
)

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
