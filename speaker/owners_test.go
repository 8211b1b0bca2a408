package main

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/members"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// fakeResponder hands some addresses over, offers some, and owns others.
type fakeResponder struct{ handing, offered, owns []netip.Addr }

func (f *fakeResponder) Handing() []netip.Addr { return slices.Clone(f.handing) }

func (f *fakeResponder) Offered() []netip.Addr { return slices.Clone(f.offered) }

func (f *fakeResponder) Owns(addrs []netip.Addr, _ bool) (out []bool) {
	for _, a := range addrs {
		out = append(out, slices.Contains(f.owns, a))
	}
	return out
}

func (f *fakeResponder) Owned(addrs []netip.Addr) {
	owned := map[netip.Addr]bool{}
	for _, a := range addrs {
		owned[a] = true
	}
	f.handing = slices.DeleteFunc(f.handing, func(a netip.Addr) bool { return owned[a] })
	f.offered = slices.DeleteFunc(f.offered, func(a netip.Addr) bool { return owned[a] })
}

// addressNumber returns one of many addresses.
func addressNumber(n int) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 0x0a000000|uint32(n))))
}

// TestLeavesToOwner: each address that is handed over stays until its new owner says that it has it, and thousands have
// their turn though their owner does not have the others.
func TestLeavesToOwner(t *testing.T) {
	const count = 5*maxAsked + 7
	to := map[netip.Addr]string{}
	from := &fakeResponder{}
	for i := range count {
		a := addressNumber(i)
		from.handing, to[a] = append(from.handing, a), "b"
	}
	to[addressNumber(0)] = "c"
	asked := map[string][]netip.Addr{}
	o := &owners{layer2: from, plan: func() plan.Plan { return plan.Plan{Owners: to} }, age: func() time.Duration { return 0 }}
	o.ask = func(member string, addrs []netip.Addr, leaves bool) {
		if len(addrs) > maxAsked || !leaves {
			t.Errorf("%s is asked about %d addresses, leaves: %v", member, len(addrs), leaves)
		}
		asked[member] = append(asked[member], addrs...)
		owns := make([]bool, len(addrs))
		for i, a := range addrs {
			owns[i] = a == addressNumber(count-1)
		}
		o.Answered(members.Answer{From: member, Addresses: addrs, Leaves: leaves, Owns: owns})
	}
	for range 14 {
		o.turns++
		o.leave()
	}
	if c := asked["c"]; len(c) != 14 || c[0] != addressNumber(0) {
		t.Errorf("c is asked about %v", c)
	}
	b := asked["b"]
	slices.SortFunc(b, netip.Addr.Compare)
	if all := slices.Compact(b); len(all) != count-1 || len(from.handing) != count-1 || slices.Contains(from.handing, addressNumber(count-1)) {
		t.Errorf("of %d addresses b was asked about %d, and %d are still handed over", count, len(all), len(from.handing))
	}
}

// TestOfferedToAll: a node whose plan loop hangs knows by the membership too who took over what it offered.
func TestOfferedToAll(t *testing.T) {
	a, b := addressNumber(1), addressNumber(2)
	from := &fakeResponder{offered: []netip.Addr{a, b}}
	announced := plan.Plan{Announcements: []lb.Announcement{{Address: a}, {Address: b}}, Owners: map[netip.Addr]string{a: "w1", b: "w1"}}
	o := &owners{node: "w1", layer2: from, plan: func() plan.Plan { return announced }, age: func() time.Duration { return 0 }, kick: func() {}}
	o.members = func() map[string]lb.Member {
		return map[string]lb.Member{"w1": {API: lb.APIHeard}, "w2": {API: lb.APIHeard}, "w3": {API: lb.APIHeard}}
	}
	var asked []string
	o.ask = func(member string, addrs []netip.Addr, leaves bool) {
		asked = append(asked, member)
		o.Answered(members.Answer{From: member, Addresses: addrs, Leaves: leaves, Owns: []bool{member == "w3", false}})
	}
	for range inquiryTurns {
		o.turn()
	}
	slices.Sort(asked)
	if !slices.Equal(asked, []string{"w2", "w3"}) || !slices.Equal(from.offered, []netip.Addr{b}) || len(o.newer) > 0 {
		t.Errorf("asked are %v, still offered are %v, newer owners are %v", asked, from.offered, o.newer)
	}
}
