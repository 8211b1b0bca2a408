package heartbeat

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// announcers is a world in which every node announces what its own plan says.
type announcers struct {
	*world
	addresses []netip.Addr
	// owners of each address by the plans of the nodes, and how often that changed.
	owners map[netip.Addr]string
	moves  map[netip.Addr]int
	// changed is when any of them did last.
	changed time.Duration
}

// newAnnouncers starts n nodes and settles them, with as many addresses of each.
func newAnnouncers(t testing.TB, seed uint64, n, each int) *announcers {
	a := &announcers{world: newWorld(seed, n), owners: map[netip.Addr]string{}, moves: map[netip.Addr]int{}}
	a.after(4 * time.Second)
	count := map[string]int{}
	for i := 1; len(a.addresses) < n*each && i < 250; i++ {
		address := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		owner := a.nodes[0].plan1([]netip.Addr{address})[address]
		if count[owner] < each {
			count[owner]++
			a.addresses = append(a.addresses, address)
		}
	}
	a.look()
	clear(a.moves)
	return a
}

// plan1 returns the owners of addresses by the plan of one node.
func (n *node) plan1(addresses []netip.Addr) map[netip.Addr]string {
	state := lb.State{
		Members: map[string]bool{}, HeldDown: map[string]bool{}, Mute: map[string]bool{}, Nodes: map[string]lb.Node{},
		Pools:            []lb.Pool{{Name: "pool", Ranges: []lb.Range{{From: netip.MustParseAddr("192.0.2.0"), To: netip.MustParseAddr("192.0.2.255")}}}},
		L2Advertisements: []lb.L2Advertisement{{Name: "all"}},
	}
	for _, m := range n.d.members(n.now(), n.name) {
		state.Nodes[m.Name] = lb.Node{Name: m.Name}
		state.Members[m.Name] = m.Status == Alive || m.Status == Held || m.Status == Mute
		state.HeldDown[m.Name] = m.Status == Held
		state.Mute[m.Name] = m.Status == Mute
		if !state.Members[m.Name] {
			delete(state.Members, m.Name)
		}
	}
	for _, a := range addresses {
		state.Services = append(state.Services, lb.Service{Key: lb.Key{Namespace: "a", Name: a.String()}, Addresses: []netip.Addr{a}, Serving: true, ServingAnywhere: true})
	}
	return plan.ForNode(n.name, state).Owners
}

// look notes who announces what now.
func (a *announcers) look() {
	for _, address := range a.addresses {
		owners := ""
		for _, n := range a.nodes {
			if n.up && !n.killed && n.plan1([]netip.Addr{address})[address] == n.name {
				owners += fmt.Sprint(a.index(n))
			}
		}
		if owners != a.owners[address] {
			a.moves[address]++
			a.owners[address] = owners
			a.changed = a.now
		}
	}
}

// run runs the world and looks every so often.
func (a *announcers) run(d time.Duration) {
	for end := a.now + d; a.now < end; {
		a.after(10 * ms)
		a.look()
	}
}

// cutLinks cuts the directed links that a state has not.
func (a *announcers) cutLinks(state int) {
	n := len(a.nodes)
	a.cut = func(from, to *node) bool {
		if from == outside || to == outside {
			return false
		}
		i, j := a.index(from), a.index(to)
		if j > i {
			j--
		}
		return state&(1<<(i*(n-1)+j)) == 0
	}
}

func (a *announcers) index(of *node) int {
	for i, n := range a.nodes {
		if n == of {
			return i
		}
	}
	return -1
}

func TestEveryNetworkOfThree(t *testing.T) {
	for state := range 64 {
		a := newAnnouncers(t, 1, 3, 1)
		a.cutLinks(state)
		hit := a.now
		a.run(5 * time.Second)
		rest := a.changed - hit
		fmt.Printf("%06b owners", state)
		for _, x := range a.addresses {
			fmt.Printf(" %-4s(%d)", a.owners[x], a.moves[x])
		}
		fmt.Printf(" rest %v own", max(0, rest))
		for _, n := range a.nodes {
			fmt.Printf(" %v", n.d.own.status)
		}
		a.cut = nil
		healed := a.now
		a.run(20 * time.Second)
		fmt.Printf(" healed %v", max(0, a.changed-healed))
		for _, x := range a.addresses {
			fmt.Printf(" %-3s(%d)", a.owners[x], a.moves[x])
		}
		fmt.Println()
	}
}
