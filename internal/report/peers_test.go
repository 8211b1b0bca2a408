package report

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/bgp"
)

// TestReported: a change of a session takes one Event, and so does each new error while it stays down, up to a bound.
func TestReported(t *testing.T) {
	established := bgp.Session{State: bgp.Established}
	down := func(err string) bgp.Session { return bgp.Session{State: "active", LastError: err} }
	var many []bgp.Session
	for i := range maxErrors + 2 {
		many = append(many, down(fmt.Sprint("error ", i)))
	}
	for _, tt := range []struct {
		name     string
		sessions []bgp.Session
		events   []bool
	}{
		{"comes up, stays up", []bgp.Session{down(""), established, established}, []bool{false, true, false}},
		{"is established again with an old error", []bgp.Session{established, {State: bgp.Established, LastError: "refused"}}, []bool{true, false}},
		{"carries less than it should, then all", []bgp.Session{established, {State: bgp.Established, Withheld: "no IPv6"}, {State: bgp.Established, Withheld: "no IPv6"}, established},
			[]bool{true, true, false, true}},
		{"goes down, and comes up again", []bgp.Session{established, down("refused"), established, down("refused")}, []bool{true, true, true, true}},
		{"goes down, the error follows", []bgp.Session{established, down(""), down("refused")}, []bool{true, false, true}},
		{"stays down", []bgp.Session{down("refused"), down("refused"), down(""), down("refused")}, []bool{true, false, false, false}},
		{"stays down with another error", []bgp.Session{down("refused"), down("no route"), down("refused")}, []bool{true, true, false}},
		{"too many errors", many, []bool{true, true, true, true, true, false, false}},
	} {
		var r reported
		var got []bool
		for _, s := range tt.sessions {
			var event bool
			r, event = r.after(s)
			got = append(got, event)
		}
		if diff := cmp.Diff(tt.events, got); diff != "" {
			t.Errorf("%s: Events (-want +got):\n%s", tt.name, diff)
		}
	}
}
