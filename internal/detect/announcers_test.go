package detect

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// announcers is a world in which every node announces what its own plan says.
type announcers struct {
	*world
	addresses []netip.Addr
	// home is the owner of each address when all is well, owners has the present ones.
	home, owners []string
	// moves counts how often an address had another owner, and none beside it, for longer than an overlap; settled
	// is that owner, since is when the owners became what they are.
	moves   []int
	settled []string
	since   []time.Duration
	plans   map[string][]bool
	// outbound reports whether what a node announces can reach anybody; nil is always.
	outbound func(n *node) bool
}

// overlap is how long an old and a new owner may both announce, which counts as one move.
const overlap = 100 * ms

// newAnnouncers starts n nodes and settles them, with as many addresses of each.
func newAnnouncers(seed uint64, n, each int) *announcers {
	return newAnnouncersOf(seed, n, each, holdDownTime)
}

// newAnnouncersOf has hold-downs grow up to a bound.
func newAnnouncersOf(seed uint64, n, each int, longest time.Duration) *announcers {
	return newAnnouncersWith(seed, n, each, func(w *world) { w.maxHoldDown = longest })
}

// newAnnouncersWith starts them in a world that was changed before.
func newAnnouncersWith(seed uint64, n, each int, change func(w *world)) *announcers {
	a := &announcers{world: newWorldWith(seed, n, change), plans: map[string][]bool{}}
	a.after(4 * time.Second)
	owners := n
	if a.firstOnClients > 0 {
		owners = a.firstOnClients // no other node has a link with the subnet
	}
	count := map[string]int{}
	for i := 1; len(a.addresses) < owners*each && i < 1<<16; i++ {
		address := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		owner := ownerOf(a.nodes[0], []netip.Addr{address})[address]
		if count[owner] < each {
			count[owner]++
			a.addresses = append(a.addresses, address)
		}
	}
	a.owners, a.moves = make([]string, len(a.addresses)), make([]int, len(a.addresses))
	a.since = make([]time.Duration, len(a.addresses))
	a.look()
	a.home = append([]string{}, a.owners...)
	a.settled = append([]string{}, a.owners...)
	return a
}

// ownerOf returns the owners of addresses by the plan of one node.
func ownerOf(n *node, addresses []netip.Addr) map[netip.Addr]string {
	state := lb.State{
		Members: map[string]bool{}, HeldDown: map[string]bool{}, SpeakerDown: map[string]bool{}, Nodes: map[string]lb.Node{},
		Pools: []lb.Pool{{Name: "pool",
			Ranges: []lb.Range{{From: netip.MustParseAddr("198.18.0.0"), To: netip.MustParseAddr("198.18.255.255")}}}},
		L2Advertisements: []lb.L2Advertisement{{Name: "all"}},
	}
	state.Here.GivenUp = n.d.isGivenUp(n.clock())
	if n.world.hasFrames() {
		state.Links = n.world.links()
	}
	for _, m := range n.d.members(n.clock()) {
		state.Nodes[m.Name] = lb.Node{Name: m.Name}
		if m.Status == Alive || m.Status == HoldDown || m.Status == SpeakerDown {
			state.Members[m.Name] = true
		}
		state.HeldDown[m.Name], state.SpeakerDown[m.Name] = m.Status == HoldDown, m.Status == SpeakerDown
	}
	for _, a := range addresses {
		state.Services = append(state.Services, &lb.Service{
			Key: lb.Key{Namespace: "default", Name: a.String()}, Addresses: []netip.Addr{a},
			Backends: lb.Backend{Families: lb.FamilySetOf(lb.FamilyOf(a)), Anywhere: true},
		})
	}
	return maps.Collect(plan.ForNode(n.name, state).Owners.All())
}

// announced returns which of the addresses a node announces by what it sees.
func (a *announcers) announced(n *node) []bool {
	var key strings.Builder
	fmt.Fprint(&key, n.name, n.d.isGivenUp(n.clock()))
	for i, o := range a.nodes {
		if a.silent[o] {
			fmt.Fprint(&key, " silent ", i)
		}
	}
	for _, m := range n.d.members(n.clock()) {
		fmt.Fprintf(&key, " %s%d", m.Name[len("node-"):], m.Status)
	}
	if known, ok := a.plans[key.String()]; ok {
		return known
	}
	owners := ownerOf(n, a.addresses)
	out := make([]bool, len(a.addresses))
	for i, address := range a.addresses {
		out[i] = owners[address] == n.name
	}
	a.plans[key.String()] = out
	return out
}

// look notes which node announces what.
func (a *announcers) look() {
	owners := make([]string, len(a.addresses))
	for i, n := range a.nodes {
		if !n.up || n.killed || a.outbound != nil && !a.outbound(n) {
			continue
		}
		for j, announces := range a.announced(n) {
			if announces {
				owners[j] += fmt.Sprintf("%d ", i)
			}
		}
	}
	for j := range owners {
		if owners[j] != a.owners[j] {
			a.owners[j], a.since[j] = owners[j], a.clock
		}
		if a.settled != nil && len(owners[j]) == len("0 ") && owners[j] != a.settled[j] && a.clock-a.since[j] > overlap {
			a.settled[j] = a.owners[j]
			a.moves[j]++
		}
	}
}

// run runs the world, looks every 10 ms, and has each sight checked.
func (a *announcers) run(d time.Duration, check func()) {
	for end := a.clock + d; a.clock < end; {
		a.after(10 * ms)
		a.look()
		if check != nil {
			check()
		}
	}
}

// never runs the world, and fails where an address of a home has owners that it must not have.
func (a *announcers) never(t *testing.T, d time.Duration, what string, wrong func(home, owners string) bool) {
	t.Helper()
	began := a.clock
	a.run(d, func() {
		for j, home := range a.home {
			if wrong(home, a.owners[j]) {
				t.Fatalf("%s: an address of %sis with %q after %v", what, home, a.owners[j], a.clock-began)
			}
		}
	})
}

// rest returns how long after a time the owners changed last.
func (a *announcers) rest(from time.Duration) (last time.Duration) {
	for _, at := range a.since {
		last = max(last, at-from)
	}
	return last
}

// maxMoves returns the most moves of any address, and resets them.
func (a *announcers) maxMoves() (highest int) {
	for j, n := range a.moves {
		highest = max(highest, n)
		a.moves[j] = 0
	}
	return highest
}

// healed fails where not everything is as before soon after a fault has ended.
func (a *announcers) healed(t *testing.T, what string) {
	t.Helper()
	a.cut = nil
	a.run(15*time.Second, nil)
	for j := range a.addresses {
		if a.owners[j] != a.home[j] {
			t.Errorf("%s: 15 s after it ended %s has the owners %q, before %q", what, a.addresses[j], a.owners[j], a.home[j])
		}
	}
}
