package report

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

func TestComplete(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	theirs := &layer2.Conflict{MAC: link.MAC{2, 0, 0, 0, 0, 9}, Link: "eth0"}
	state := func(is string, c *layer2.Conflict, links ...string) layer2.AddressState {
		return layer2.AddressState{Is: is, Conflict: c, Links: links}
	}
	well := state("announced", nil, "eth0")
	for _, tt := range []struct {
		name      string
		v4, v6    layer2.AddressState
		known     bool
		reason    lb.Reason
		message   string
		conflicts []string
	}{
		{"announced", well, state("announced", nil, "eth0", "eth1"), true, lb.Announced,
			"192.0.2.10 by node w1 on eth0, 2001:db8::10 by node w1 on eth0 and eth1", nil},
		{"still probing", well, state("probing", nil, "eth0"), false, lb.Announced, "", nil},
		{"a foreign machine has it", state("conflicting", theirs, "eth0"), well, true, lb.AddressConflict,
			"192.0.2.10 is in use by 02:00:00:00:00:09 on eth0, seen by node w1: free it there, or ask for another address, 2001:db8::10 by node w1 on eth0", nil},
		{"a foreign machine has it, and the node probes again", state("probing", theirs, "eth0"), well, true, lb.AddressConflict,
			"192.0.2.10 is in use by 02:00:00:00:00:09 on eth0, seen by node w1: free it there, or ask for another address, 2001:db8::10 by node w1 on eth0", nil},
		{"a foreign machine claims it later", state("announced", theirs, "eth0"), well, true, lb.Announced,
			"192.0.2.10 by node w1 on eth0 (02:00:00:00:00:09 on eth0 says that it has it too), 2001:db8::10 by node w1 on eth0",
			[]string{"02:00:00:00:00:09 on eth0 says that it has 192.0.2.10, which node w1 announces: take it from that machine"}},
		{"sockets are still being opened", well, layer2.AddressState{Is: "announced", Opening: true}, false, lb.Announced, "", nil},
		{"no link", well, state("announced", nil), true, lb.NoLink,
			"192.0.2.10 by node w1 on eth0, 2001:db8::10 is to be announced from node w1, which has no link to do so: check that one is up, and the interfaces of the L2Advertisement", nil},
		{"no link to probe on", well, state("probing", nil), true, lb.NoLink,
			"192.0.2.10 by node w1 on eth0, 2001:db8::10 is to be announced from node w1, which has no link to do so: check that one is up, and the interfaces of the L2Advertisement", nil},
		{"sockets are refused", well, layer2.AddressState{Is: "announced", Refused: []string{"open IPv4 socket on eth1: operation not permitted"}}, true, lb.SocketRefused,
			"192.0.2.10 by node w1 on eth0, 2001:db8::10 is to be announced from node w1, which cannot answer for it: open IPv4 socket on eth1: operation not permitted", nil},
		{"on one of two links", well, layer2.AddressState{Is: "announced", Links: []string{"eth0"}, Refused: []string{"open IPv4 socket on eth1: operation not permitted"}}, true, lb.Announced,
			"192.0.2.10 by node w1 on eth0, 2001:db8::10 by node w1 on eth0", nil},
	} {
		is := announced{v4: tt.v4, v6: tt.v6}
		o := plan.Outcome{Reason: lb.Announced, Announcers: []plan.Announcer{{Address: v4, Node: "w1"}, {Address: v6, Node: "w1"}}}
		got, record, known := is.complete(o, "w1")
		if known != tt.known || got.Reason != tt.reason {
			t.Errorf("%s: %v, known %v", tt.name, got.Reason, known)
		}
		if diff := cmp.Diff(tt.message, got.Message); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if got := is.conflicts(o, "w1"); !reflect.DeepEqual(got, tt.conflicts) {
			t.Errorf("%s: conflicts %q", tt.name, got)
		}
		for _, a := range []netip.Addr{v4, v6} {
			if recorded := strings.Contains(record, a.String()+"=w1"); recorded != (known && is[a].Answered() && len(is[a].Links) > 0) {
				t.Errorf("%s: the record is %q", tt.name, record)
			}
		}
	}
	if _, _, known := (announced{}).complete(plan.Outcome{Announcers: []plan.Announcer{{Address: v4, Node: "w1"}}}, "w1"); known {
		t.Error("the state of an address that layer 2 does not know yet counts as known")
	}
}

// TestCompleteForOthers: the writer reports also what other nodes announce, and what is not announced.
func TestCompleteForOthers(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	o := plan.Outcome{Reason: lb.NoEligibleNode, Message: "no node may announce", Announcers: []plan.Announcer{{Address: v4, Node: "w2", Remark: "far away"}}}
	got, record, known := announced{}.complete(o, "w1")
	if !known || got.Message != "192.0.2.10 by node w2 (far away); the rest waits: no node may announce" || record != "192.0.2.10=w2" {
		t.Errorf("known %v, record %q: %s", known, record, got.Message)
	}
	o.Announcers = append(o.Announcers, plan.Announcer{Address: v6, Node: "w1"})
	if _, record, _ := (announced{v6: {Is: "announced", Links: []string{"eth0"}}}).complete(o, "w1"); record != "192.0.2.10=w2,2001:db8::10=w1" {
		t.Errorf("the record is %q", record)
	}
	if _, record, _ := (announced{}).complete(plan.Outcome{Message: "no node may announce"}, "w1"); record != "" {
		t.Errorf("nobody announces: the record is %q", record)
	}
}
