package layer2

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// mostMachines bounds the machines recorded for each family on a link, the latest ones.
	mostMachines = 8
	// machineAge is how long a machine is worth asking after it was last heard: a machine
	// with a confirmed cache entry for our address is silent for a while.
	machineAge = 10 * time.Minute
	// machineInterval is how often the time of the same machine is updated, and how long
	// a machine is safe from replacement.
	machineInterval = time.Second
	// gatewayInterval is how often we read the kernel's gateways.
	gatewayInterval = 10 * time.Second
)

// machine is a foreign machine on a link.
type machine struct {
	addr netip.Addr
	mac  lb.MAC
	seen time.Time
	// answered: it answered a question of ours, so it is more than a sender address.
	answered bool
}

// isGateway reports whether it is a default gateway of the kernel's.
func (m *machine) isGateway() bool { return m.seen.IsZero() }

// foreignMachines has the foreign machines that were heard on a link.
type foreignMachines struct {
	// heard by family. The reader of that family writes, and whoever asks: of two writes at once one may be lost.
	heard [families][mostMachines]atomic.Pointer[machine]
	// gateways as last read from the kernel.
	gateways atomic.Pointer[[]lb.Neighbour]
}

func (r *Responder) foreignOn(linkName string) *foreignMachines {
	known, _ := r.foreignByLink.LoadOrStore(linkName, &foreignMachines{})
	return known.(*foreignMachines)
}

// asker records who asks for a planned address, if it is no speaker, and asks for itself.
func (r *Responder) asker(t *table, c *foreignMachines, m message, frame []byte) {
	if !t.of.Speakers[m.mac] && m.mac == lb.MAC(frame[offSource:offEtherType]) {
		c.record(number(lb.FamilyOf(m.target)), machine{addr: m.sender, mac: m.mac, seen: r.now()})
	}
}

// record records a machine that asked for a planned address, or that answered. The former displace only each other.
func (c *foreignMachines) record(family int, m machine) {
	if !m.addr.IsGlobalUnicast() && !m.addr.IsLinkLocalUnicast() {
		return
	}

	heard := &c.heard[family]
	var place *atomic.Pointer[machine]
	for i := range heard {
		known := heard[i].Load()
		if known == nil || known.mac == m.mac && known.addr == m.addr {
			place = &heard[i]
			break
		}

		if safe := known.answered &&
			m.seen.Sub(known.seen) < machineAge; !safe &&
			(place == nil ||
				known.seen.Before(place.Load().seen)) {
			place = &heard[i]
		}
	}

	if place == nil {
		return
	}

	known := place.Load()
	if known != nil && known.mac == m.mac && known.addr == m.addr {
		m.answered = m.answered || known.answered
	}

	if known == nil || m.seen.Sub(known.seen) >= machineInterval || m.answered && !known.answered {
		place.Store(&m)
	}
}

// answered records a machine that answered for an address of its own, if it asked before.
func (r *Responder) answered(e *tap, m message) {
	c, family := r.foreignOn(e.link.Name), e.proto.number
	for i := range c.heard[family] {
		if known := c.heard[family][i].Load(); known != nil && known.mac == m.mac && known.addr == m.claimed {
			c.record(family, machine{addr: m.claimed, mac: m.mac, seen: r.now(), answered: true})
		}
	}
}

// learn takes the present gateways. It keeps a MAC that the kernel has forgotten: the
// kernel forgets machines that it cannot reach, which is when we need to ask them.
func (c *foreignMachines) learn(gateways []lb.Neighbour) {
	before := c.gateways.Load()
	for i := range gateways {
		g := &gateways[i]
		if g.MAC != (lb.MAC{}) || before == nil {
			continue
		}

		for _, known := range *before {
			if known.Address == g.Address {
				g.MAC = known.MAC
			}
		}
	}

	c.gateways.Store(&gateways)
}

// learnGateways reads the kernel's gateways periodically until the context ends.
func (r *Responder) learnGateways(ctx context.Context) {
	again := time.NewTicker(gatewayInterval)
	defer again.Stop()
	for {
		for _, l := range r.config.Links() {
			if l.Usable() {
				r.foreignOn(l.Name).learn(r.config.Gateways(l.Index))
			}
		}

		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// Networks returns the subnets of the links that announce, and the default gateways there as of the last ten seconds.
// Each stands once.
func (r *Responder) Networks() (subnets []netip.Prefix, gateways []netip.Addr) {
	for _, l := range r.config.Links() {
		if !l.Usable() {
			continue
		}

		for _, p := range l.Prefixes {
			subnet := p.Masked()
			if !p.Addr().IsLinkLocalUnicast() && !p.IsSingleIP() && !slices.Contains(subnets, subnet) {
				subnets = append(subnets, subnet)
			}
		}

		known := r.foreignOn(l.Name).gateways.Load()
		if known == nil {
			continue // not read yet
		}

		for _, g := range *known {
			if !g.Address.IsLinkLocalUnicast() && !slices.Contains(gateways, g.Address) {
				gateways = append(gateways, g.Address)
			}
		}
	}

	return subnets, gateways
}

// Foreign returns at most n foreign machines on a link, each with an address of its own,
// for Ask: an answer of any of them shows that the link works.
//
// The default gateways come first, then machines that asked for a planned address, of any speaker, in the last ten
// minutes: those that answered a question of ours, and then the others, each latest first, IPv4 and IPv6 by turns.
// Second addresses of the same machine come last.
func (r *Responder) Foreign(linkName string, n int) []lb.Question {
	machines, again := r.near(r.foreignOn(linkName), 0, 1)
	var out []lb.Question
	for _, m := range append(machines, again...) {
		out = append(out, lb.Question{Link: linkName, MAC: m.mac, Address: m.addr})
	}
	return out[:min(n, len(out))]
}

// near returns the foreign machines of some families on a link in that order, and apart from them the second addresses
// of the same machines.
func (r *Responder) near(c *foreignMachines, ofFamilies ...int) (machines, again []machine) {
	t := r.table.Load()
	known := make(map[lb.MAC]bool)
	add := func(m machine) {
		switch {
		case !m.mac.IsUnicast() || t.of.Speakers[m.mac] || t.entries.Has(m.addr):
		case known[m.mac]:
			again = append(again, m)
		default:
			known[m.mac] = true
			machines = append(machines, m)
		}
	}
	if gateways := c.gateways.Load(); gateways != nil {
		for _, g := range *gateways {
			if slices.Contains(ofFamilies, number(lb.FamilyOf(g.Address))) {
				add(machine{addr: g.Address, mac: g.MAC})
			}
		}
	}

	var heard [families][]*machine
	for _, family := range ofFamilies {
		heard[family] = c.latest(family, r.now())
	}

	for i := range mostMachines {
		for _, machines := range heard {
			if i < len(machines) {
				add(*machines[i])
			}
		}
	}

	return machines, again
}

// latest returns the recently heard machines of a family, those that answered and then the others, each latest first.
func (c *foreignMachines) latest(family int, now time.Time) []*machine {
	var out []*machine
	for i := range c.heard[family] {
		if m := c.heard[family][i].Load(); m != nil && now.Sub(m.seen) < machineAge {
			out = append(out, m)
		}
	}

	slices.SortFunc(out, func(a, b *machine) int {
		switch {
		case a.answered == b.answered:
			return b.seen.Compare(a.seen)
		case a.answered:
			return -1
		}

		return 1
	})

	return out
}
