package plan

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestWithSessions: an outcome of BGP names the peers that have a session, and waits while the first attempts last.
func TestWithSessions(t *testing.T) {
	down := lb.Session{Peer: "r1", State: "active", LastError: `closed by the router: "ticket 17"`}
	connecting, connectingToo := lb.Session{Peer: "r1", State: "active"}, lb.Session{Peer: "r2", State: "active"}
	elsewhere := lb.Session{Peer: "r3", State: "active", LastError: "no route to host"}
	established := lb.Session{Peer: "r2", State: lb.Established}
	for _, tt := range []struct {
		name     string
		nodes    []string
		sessions []lb.Session
		reason   lb.Reason // "" for nothing to write
		message  string
	}{
		{"one of two sessions", []string{"w1"}, []lb.Session{down, established}, lb.Announced, "advertised to r2"},
		{"one of two is up already", []string{"w1"}, []lb.Session{connecting, established}, lb.Announced, "advertised to r2"},
		{"other nodes may have other peers", []string{"w1", "w2"}, []lb.Session{down, established}, lb.Announced, "advertised (w1 to r2)"},
		{"still connecting", nil, []lb.Session{connecting, connectingToo, elsewhere}, "", "advertised"},
		{"no session was started", nil, nil, "", "advertised"},
		{"no session", nil, []lb.Session{down, connectingToo}, lb.NoSession,
			"no session is established with r1, r2: the condition Established of each BGPPeer says why"},
	} {
		got, known := Outcome{Reason: lb.Announced, Message: "advertised", Nodes: tt.nodes, Peers: []string{"r1", "r2"}}.WithSessions("w1", tt.sessions)
		if known != (tt.reason != "") || known && got.Reason != tt.reason || got.Message != tt.message {
			t.Errorf("%s: known %t, %s: %s", tt.name, known, got.Reason, got.Message)
		}
	}
}

// TestOnLinks: what the links add to an outcome of layer 2. Node w1 owns both addresses, unless the row names another owner.
func TestOnLinks(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	theirs := lb.Conflict{MAC: lb.MAC{2, 0, 0, 0, 0, 9}, Link: "eth0"}
	well := lb.AddressState{Links: []string{"eth0"}, Answered: true}
	both := []Announcer{{Address: v4, Node: "w1"}, {Address: v6, Node: "w1"}}
	const foreign = "02:00:00:00:00:09 on eth0 claims 2001:db8::10, which node w1 announces: remove the address from that machine"
	const v4Well = "192.0.2.10 by node w1 on eth0, "
	for _, tt := range []struct {
		name string
		v6   lb.AddressState
		// known, reason, message and record are what is to be written.
		known           bool
		reason          lb.Reason
		message, record string
		conflicts       []string
	}{
		{"announced", lb.AddressState{Links: []string{"eth0", "eth1"}, Answered: true}, true, lb.Announced,
			v4Well + "2001:db8::10 by node w1 on eth0 and eth1", "192.0.2.10=w1,2001:db8::10=w1", nil},
		{"still probing", lb.AddressState{Links: []string{"eth0"}, Pending: true}, false, lb.Announced, "", "", nil},
		{"a foreign machine has it", lb.AddressState{Conflicts: []lb.Conflict{theirs}}, true, lb.AddressConflict,
			v4Well + "2001:db8::10 is in use by 02:00:00:00:00:09 on eth0, seen by node w1: free it there, or ask for another address", "192.0.2.10=w1", nil},
		{"foreign machines on both links have it", lb.AddressState{Conflicts: []lb.Conflict{theirs, {MAC: theirs.MAC, Link: "eth1"}}}, true, lb.AddressConflict,
			v4Well + "2001:db8::10 is in use by 02:00:00:00:00:09 on eth0 and 02:00:00:00:00:09 on eth1, seen by node w1: free it there, or ask for another address",
			"192.0.2.10=w1", nil},
		{"a foreign machine on one of two links has it", lb.AddressState{Conflicts: []lb.Conflict{theirs}, Links: []string{"eth1"}, Answered: true}, true,
			lb.AddressConflict, v4Well + "2001:db8::10 by node w1 on eth1 (not on eth0, where it is in use by 02:00:00:00:00:09)",
			"192.0.2.10=w1,2001:db8::10=w1", []string{foreign}},
		{"a foreign machine claims it later", lb.AddressState{Conflicts: []lb.Conflict{theirs}, Links: []string{"eth0"}, Answered: true}, true, lb.Announced,
			v4Well + "2001:db8::10 by node w1 on eth0 (02:00:00:00:00:09 on eth0 claims it too)", "192.0.2.10=w1,2001:db8::10=w1", []string{foreign}},
		{"no link", lb.AddressState{}, true, lb.NoLink, v4Well + "2001:db8::10 is to be announced from node w1, which has no link to do so: " +
			"check that one is up, and the interfaces of the L2Advertisement", "192.0.2.10=w1", nil},
		{"sockets are refused", lb.AddressState{Refused: []string{"open socket on eth1: no"}}, true, lb.SocketRefused,
			v4Well + "2001:db8::10 is to be announced from node w1, which cannot answer for it: open socket on eth1: no", "192.0.2.10=w1", nil},
		{"one socket is refused", lb.AddressState{Answered: true, Links: []string{"eth0"}, Refused: []string{"open socket on eth1: no"}}, true, lb.Announced,
			v4Well + "2001:db8::10 by node w1 on eth0", "192.0.2.10=w1,2001:db8::10=w1", nil},
	} {
		states := map[netip.Addr]lb.AddressState{v4: well, v6: tt.v6}
		o := Outcome{Reason: lb.Announced, Announcers: both}
		got, record, known := o.OnLinks("w1", states)
		if known != tt.known || got.Reason != tt.reason || record != tt.record || !slices.Equal(o.Conflicts("w1", states), tt.conflicts) {
			t.Errorf("%s: %v, known %v, record %q, conflicts %q", tt.name, got.Reason, known, record, o.Conflicts("w1", states))
		}
		if diff := cmp.Diff(tt.message, got.Message); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	if _, _, known := (Outcome{Announcers: both}).OnLinks("w1", nil); known {
		t.Error("the state of an address that layer 2 does not know yet counts as known")
	}
	o := Outcome{Reason: lb.NoEligibleNode, Message: "no node may announce", Announcers: []Announcer{{Address: v4, Node: "w2", Remark: "far away"}}}
	got, record, known := o.OnLinks("w1", nil)
	if !known || got.Message != "192.0.2.10 by node w2 (far away); the rest waits: no node may announce" || record != "192.0.2.10=w2" {
		t.Errorf("of another node: known %v, record %q: %s", known, record, got.Message)
	}
}
