package ipam

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

var (
	egressAddr  = netip.MustParseAddr("192.0.2.7")
	sliceEpoch  = time.Unix(1_000_000, 0)
	compareAddr = cmpopts.EquateComparable(netip.Addr{})
)

// sliceAt returns a slice by its block. released is in seconds after sliceEpoch; negative for a slice in use.
func sliceAt(block int, user string, released int) lb.PortSlice {
	namespace, node, _ := strings.Cut(user, "/")
	s := lb.PortSlice{Address: egressAddr, First: uint16(block * lb.SlicePorts), Node: node, Namespace: namespace}
	if released >= 0 {
		s.Released = sliceEpoch.Add(time.Duration(released) * time.Second)
	}
	return s
}

// sending returns the address with users as NAMESPACE/NODE.
func sending(users ...string) EgressAddress {
	a := EgressAddress{Address: egressAddr, Ports: []lb.Port{{Protocol: "TCP", Port: 80}}}
	for _, u := range users {
		namespace, node, _ := strings.Cut(u, "/")
		a.Users = append(a.Users, SliceUser{Namespace: namespace, Node: node})
	}
	return a
}

func (a EgressAddress) declaring(ports ...uint16) EgressAddress {
	for _, p := range ports {
		a.Ports = append(a.Ports, lb.Port{Protocol: "UDP", Port: p})
	}
	return a
}

func TestAssignSlices(t *testing.T) {
	list := func(s ...lb.PortSlice) []lb.PortSlice { return s }
	for _, tt := range []struct {
		name      string
		addresses []EgressAddress
		present   []lb.PortSlice
		at        int
		want      []lb.PortSlice
		recheck   int
	}{
		{"the first nodes get the highest ports", []EgressAddress{sending("a/n2", "a/n1")}, nil, 0,
			list(sliceAt(14, "a/n2", -1), sliceAt(15, "a/n1", -1)), 0},
		{"a part with a declared port is left out", []EgressAddress{sending("a/n1").declaring(65535, 57344)}, nil, 0,
			list(sliceAt(13, "a/n1", -1)), 0},
		{"a node keeps its slice, whatever ports are declared", []EgressAddress{sending("a/n1").declaring(20481)},
			list(sliceAt(5, "a/n1", -1)), 0, list(sliceAt(5, "a/n1", -1)), 0},
		{
			"a slice without pods rests",
			[]EgressAddress{sending()}, list(sliceAt(5, "a/n1", -1)), 7, list(sliceAt(5, "a/n1", 7)), 307,
		},
		{"without a Service too", nil, list(sliceAt(5, "a/n1", -1)), 7, list(sliceAt(5, "a/n1", 7)), 307},
		{"it rests on", nil, list(sliceAt(5, "a/n1", 7)), 306, list(sliceAt(5, "a/n1", 7)), 307},
		{"it has rested", nil, list(sliceAt(5, "a/n1", 7)), 307, nil, 0},
		{"no other node gets it while it rests", []EgressAddress{sending("a/n2")}, list(sliceAt(15, "a/n1", 7)), 306,
			list(sliceAt(14, "a/n2", -1), sliceAt(15, "a/n1", 7)), 307},
		{"another node gets it afterwards", []EgressAddress{sending("a/n2")}, list(sliceAt(15, "a/n1", 7)), 307,
			list(sliceAt(15, "a/n2", -1)), 0},
		{
			"its node takes it back",
			[]EgressAddress{sending("a/n1")}, list(sliceAt(5, "a/n1", 7)), 306, list(sliceAt(5, "a/n1", -1)), 0,
		},
		{
			"but not if a port was declared in it",
			[]EgressAddress{sending("a/n1").declaring(20480)}, list(sliceAt(5, "a/n1", 7)), 10,
			list(sliceAt(5, "a/n1", 7), sliceAt(15, "a/n1", -1)), 307,
		},
		{
			"another namespace gets ports of its own on the node",
			[]EgressAddress{sending("b/n1")}, list(sliceAt(15, "a/n1", -1)), 7,
			list(sliceAt(14, "b/n1", -1), sliceAt(15, "a/n1", 7)), 307,
		},
		{"both namespaces of a shared address too", []EgressAddress{sending("a/n1"), sending("b/n1")}, nil, 0,
			list(sliceAt(14, "b/n1", -1), sliceAt(15, "a/n1", -1)), 0},
		{
			"of two slices the lower one stays",
			[]EgressAddress{sending("a/n1")}, list(sliceAt(5, "a/n1", -1), sliceAt(6, "a/n1", -1)), 7,
			list(sliceAt(5, "a/n1", -1), sliceAt(6, "a/n1", 7)), 307,
		},
		{
			"the slice in use comes first",
			[]EgressAddress{sending("a/n1")}, list(sliceAt(5, "a/n1", 3), sliceAt(6, "a/n1", -1)), 7,
			list(sliceAt(5, "a/n1", 3), sliceAt(6, "a/n1", -1)), 303,
		},
		{"a release in the future is now", nil, list(sliceAt(5, "a/n1", 9000)), 7, list(sliceAt(5, "a/n1", 7)), 307},
	} {
		r := AssignSlices(tt.addresses, tt.present, sliceEpoch.Add(time.Duration(tt.at)*time.Second))
		if diff := cmp.Diff(tt.want, r.Slices, compareAddr); diff != "" || len(r.Refused) > 0 {
			t.Errorf("%s: refused %v, -want +got\n%s", tt.name, r.Refused, diff)
		}
		want := time.Duration(tt.recheck) * time.Second
		if tt.recheck == 0 != r.Recheck.IsZero() || tt.recheck > 0 && r.Recheck.Sub(sliceEpoch) != want {
			t.Errorf("%s: recheck at %v, want after %v", tt.name, r.Recheck, want)
		}
	}
}

// TestSlicesRefused: without a free part a node gets nothing, nothing is taken from others, and the first one has none.
func TestSlicesRefused(t *testing.T) {
	var users []string
	for i := range 20 {
		users = append(users, fmt.Sprintf("a/n%02d", i))
	}
	r := AssignSlices([]EgressAddress{sending(users...).declaring(61440)}, []lb.PortSlice{sliceAt(14, "a/gone", 100)},
		sliceEpoch.Add(200*time.Second))
	if len(r.Slices) != 14 || r.Slices[0].First != lb.SlicePorts || len(r.Refused) != 7 {
		t.Fatalf("%v\nrefused %v", r.Slices, r.Refused)
	}
	first := r.Refused[0]
	for _, part := range []string{
		"192.0.2.7", "node n13", "15 parts", "13 are in use", "1 are free again in 5m0s", "1 have ports",
	} {
		if !strings.Contains(first.Message, part) {
			t.Errorf("%q lacks %q", first.Message, part)
		}
	}
	again := AssignSlices([]EgressAddress{sending(users...).declaring(61440)}, r.Slices, sliceEpoch.Add(200*time.Second))
	if !slices.Equal(again.Slices, r.Slices) {
		t.Errorf("decided again: %v, after %v", again.Slices, r.Slices)
	}
}

// TestSliceHistory plays random histories of pods, ports and holders. Two controllers decide by turns, by caches that
// lag by up to maxSliceLag; writes fail, land without an answer, or are repeated. The record is one object, which is
// written by its version.
//
// The histories find each of these planted bugs: a slice is free without rest, or when its holder changes; it is taken
// from its user; a part with a declared port is given; the first part is given; namespaces share slices; a record is
// written without its version.
func TestSliceHistory(t *testing.T) {
	histories := 400
	if testing.Short() {
		histories = 40
	}
	given, refused := 0, 0
	for seed := range uint64(histories) {
		h := newSliceHistory(seed)
		for step := range 150 {
			h.step()
			if h.fault != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, h.fault)
			}
		}
		given, refused = given+h.given, refused+h.refused
	}
	if given < 10*histories || refused < histories {
		t.Errorf("only %d slices were given, and %d refused", given, refused)
	}
}

// maxSliceLag bounds the lag of a cache. It is less than SliceRest.
const maxSliceLag = time.Minute

// sliceWorld is what the API server has.
type sliceWorld struct {
	at time.Time
	// holder is the namespace that has the address; "" for none.
	holder string
	ports  []uint16
	// users are the users with pods of the holder.
	pods map[SliceUser]bool
	// record is the recorded slices, and version their version.
	record  []lb.PortSlice
	version int
}

type sliceHistory struct {
	*rand.Rand
	// worlds are all states; the last is the present.
	worlds []sliceWorld
	// lastSent is when pods of a user last existed while a slice of theirs was in use. They send from no other.
	lastSent map[lb.PortSlice]time.Time
	// pending is a write that lands later, or never.
	pending        func()
	given, refused int
	fault          error
}

func newSliceHistory(seed uint64) *sliceHistory {
	h := &sliceHistory{Rand: rand.New(rand.NewPCG(seed, 7)), lastSent: map[lb.PortSlice]time.Time{}}
	h.worlds = []sliceWorld{{at: sliceEpoch, holder: "a", pods: map[SliceUser]bool{}}}
	return h
}

func (h *sliceHistory) latest() *sliceWorld { return &h.worlds[len(h.worlds)-1] }

// edit makes a new present.
func (h *sliceHistory) edit(change func(w *sliceWorld)) {
	w := *h.latest()
	w.pods = maps.Clone(w.pods)
	change(&w)
	h.worlds = append(h.worlds, w)
	for _, s := range w.record {
		if s.Released.IsZero() && w.holder == s.Namespace && w.pods[userOf(&s)] {
			h.lastSent[s] = w.at
		}
	}
}

func (h *sliceHistory) step() {
	h.edit(func(w *sliceWorld) { w.at = w.at.Add(time.Duration(1+h.IntN(40)) * time.Second) })
	for range h.IntN(4) {
		h.edit(h.change)
	}
	if h.pending != nil && h.IntN(2) == 0 {
		h.pending()
		h.pending = nil
	}
	h.decide()
}

// change is what users do.
func (h *sliceHistory) change(w *sliceWorld) {
	nodes := 6
	if h.IntN(3) == 0 {
		nodes = 20
	}
	u := SliceUser{Namespace: w.holder, Node: fmt.Sprint("n", h.IntN(nodes))}
	switch n := h.IntN(40); {
	case n == 0:
		w.holder = []string{"", "a", "b"}[h.IntN(3)]
		w.ports, w.pods = nil, map[SliceUser]bool{}
	case n < 4:
		w.ports = append(slices.Clone(w.ports), uint16(h.IntN(1<<16)))
	case n < 6:
		w.ports = nil
	case w.holder == "":
	case n < 26:
		w.pods[u] = true
	default:
		delete(w.pods, u)
	}
}

// decide is one run of a controller. Each of its caches lags by an amount of its own.
func (h *sliceHistory) decide() {
	services, pods, record := h.seen(), h.seen(), h.seen()
	if h.IntN(3) > 0 {
		services, pods, record = h.latest(), h.latest(), h.latest()
	}

	var addresses []EgressAddress
	if services.holder != "" {
		a := EgressAddress{Address: egressAddr}
		for _, p := range services.ports {
			a.Ports = append(a.Ports, lb.Port{Protocol: "TCP", Port: p})
		}
		for u := range pods.pods {
			if u.Namespace == services.holder {
				a.Users = append(a.Users, u)
			}
		}
		addresses = append(addresses, a)
	}

	at := h.latest().at
	r := AssignSlices(addresses, record.record, at)
	h.fault = errors.Join(h.fault, checkSlices(addresses, record.record, r, at))
	h.refused += len(r.Refused)

	write := func() {
		if h.latest().version == record.version {
			h.land(r.Slices)
		}
	}
	switch h.IntN(8) {
	case 0: // it is not sent
	case 1:
		h.pending = write
	case 2:
		write()
		write() // again, without an answer to the first
	default:
		write()
	}
}

// seen returns what a cache shows.
func (h *sliceHistory) seen() *sliceWorld {
	i := len(h.worlds) - 1
	for i > 0 && h.IntN(4) > 0 && h.latest().at.Sub(h.worlds[i-1].at) < maxSliceLag {
		i--
	}
	return &h.worlds[i]
}

// land writes a record, and checks that no ports come to another user before they have rested.
func (h *sliceHistory) land(list []lb.PortSlice) {
	before := h.latest().record
	for _, s := range list {
		i := slices.IndexFunc(before, func(o lb.PortSlice) bool { return o.First == s.First })
		if i < 0 {
			h.given++
		}
		for last, at := range h.lastSent {
			isOther := last.First == s.First && userOf(&last) != userOf(&s)
			if rested := h.latest().at.Sub(at); isOther && rested < SliceRest-maxSliceLag {
				h.fault = errors.Join(h.fault, fmt.Errorf("%v has the ports of %v, whose pods sent %v ago", s, last, rested))
			}
		}
	}
	h.edit(func(w *sliceWorld) { w.record, w.version = list, w.version+1 })
}

// checkSlices checks one decision by brute force.
func checkSlices(addresses []EgressAddress, before []lb.PortSlice, r SliceResult, at time.Time) error {
	users, declared := map[SliceUser]bool{}, map[int]bool{}
	for _, a := range addresses {
		for _, u := range a.Users {
			users[u] = true
		}
		for _, p := range a.Ports {
			declared[int(p.Port)/lb.SlicePorts] = true
		}
	}
	old := map[uint16]lb.PortSlice{}
	for _, s := range before {
		old[s.First] = s
	}

	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	served, taken := map[SliceUser]int{}, map[int]bool{}
	for i, s := range r.Slices {
		block, former := int(s.First)/lb.SlicePorts, old[s.First]
		inUse := s.Released.IsZero()
		taken[block] = true
		switch {
		case s.First%lb.SlicePorts != 0 || block == 0 || i > 0 && r.Slices[i-1].Compare(s) >= 0:
			fail("%v is not aligned, is the first, or comes twice", s)
		case inUse && !users[userOf(&s)]:
			fail("%v is in use, and its user has no pods", s)
		case inUse && (former.Node == "" || !former.Released.IsZero()) && declared[block]:
			fail("%v is given, and has a declared port", s)
		case former.Node != "" && userOf(&former) != userOf(&s) && (former.Released.IsZero() ||
			at.Sub(former.Released) < SliceRest):
			fail("%v is given, and was %v", s, former)
		case !inUse && former.Node == "":
			fail("%v was never given", s)
		}
		if inUse {
			served[userOf(&s)]++
		}
		delete(old, s.First)
	}
	for _, s := range old {
		if s.Released.IsZero() || at.Sub(s.Released) < SliceRest {
			fail("%v is free without rest", s)
		}
	}

	for _, s := range before {
		isUser := func(o lb.PortSlice) bool { return o.Released.IsZero() && userOf(&o) == userOf(&s) }
		has := slices.IndexFunc(r.Slices, isUser)
		switch {
		case !users[userOf(&s)]:
		case s.Released.IsZero() && !slices.Contains(r.Slices, s):
			fail("%v is taken from its user", s)
		case !declared[int(s.First)/lb.SlicePorts] && (has < 0 || !slices.ContainsFunc(before, func(o lb.PortSlice) bool {
			return userOf(&o) == userOf(&s) && o.First == r.Slices[has].First
		})):
			fail("%v is not taken back by its user", s)
		}
	}
	for _, refused := range r.Refused {
		served[refused.User]++
	}
	for u := range users {
		if served[u] != 1 {
			fail("%v has %d slices", u, served[u])
		}
	}
	for block := 1; block < blocks && len(r.Refused) > 0; block++ {
		if !taken[block] && !declared[block] {
			fail("%v is refused, and part %d is free", r.Refused[0].User, block)
		}
	}
	return errors.Join(errs...)
}

// TestSharingWithSlices: a Service does not share an address where pods send from one of its ports. A holder keeps the
// address, though its port is not served.
func TestSharingWithSlices(t *testing.T) {
	const address = "192.0.2.7"
	port := func(n uint16) lb.Port { return lb.Port{Protocol: "TCP", Port: n} }
	state := lb.State{
		Pools:  []lb.Pool{pool("p", address)},
		Slices: []lb.PortSlice{sliceAt(14, "a/n1", -1), sliceAt(15, "a/n2", 0)},
	}
	for _, tt := range []struct {
		name   string
		holder []func(*lb.Service)
		port   uint16
		reason lb.Reason
	}{
		{"a free port", nil, 57343, lb.Assigned},
		{"a port in use", nil, 57344, lb.PortClash},
		{"a port that rests", nil, 65535, lb.PortClash},
		{
			"a holder's port is not served",
			[]func(*lb.Service){func(s *lb.Service) { s.Unserved = []lb.Port{port(60000)} }}, 443, lb.NotShareable,
		},
	} {
		holder := service("a",
			append([]func(*lb.Service){sharing(port(80)), holding(address), from(address, "p")}, tt.holder...)...)
		state.Services = []*lb.Service{holder, service("b", sharing(port(tt.port)), asking(address), created(9))}
		r := Assign(state)
		if got := r.Assignments[1]; got.Reason != tt.reason || len(r.Assignments[0].Addresses) != 1 {
			t.Errorf("%s: %s %s, and the holder has %v", tt.name, got.Reason, got.Message, r.Assignments[0].Addresses)
		}
	}

	state.Services = []*lb.Service{service("b", sharing(port(65535)), asking(address))}
	if got := Assign(state).Assignments[0]; got.Reason != lb.Assigned {
		t.Errorf("an address without a holder: %s %s", got.Reason, got.Message)
	}
}
