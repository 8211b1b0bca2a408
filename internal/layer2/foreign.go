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
	// maxMachines bounds the machines recorded for each family on a link, the latest ones.
	maxMachines = 8
	// machineLifetime is the time after its last frame in which a machine may be asked. A machine with a confirmed
	// cache entry for an address of this node sends nothing for a while.
	machineLifetime = 10 * time.Minute
	// machineInterval is the time between two updates of lastHeard of the same machine.
	machineInterval = time.Second
	// gatewayInterval is the time between two reads of the kernel's gateways.
	gatewayInterval = 10 * time.Second
)

// machine is a machine on a link, by one of its addresses.
type machine struct {
	addr netip.Addr
	mac  lb.MAC
	// lastHeard is zero for a gateway of the kernel's.
	lastHeard time.Time
	// hasAnswered reports whether it answered a question of this node: it is more than a sender address.
	hasAnswered bool
}

// isGateway reports whether the machine is a default gateway of the kernel's.
func (m *machine) isGateway() bool {
	return m.lastHeard.IsZero()
}

// isSame reports whether both are the same machine by the same address.
func (m *machine) isSame(other machine) bool {
	return m.mac == other.mac && m.addr == other.addr
}

// foreignMachines has the foreign machines that were heard on a link.
type foreignMachines struct {
	// heard has the machines by family. The reader of that family and inquiries write it: of two writes at once one may
	// be lost.
	heard [familyCount][maxMachines]atomic.Pointer[machine]
	// gateways are the gateways as last read from the kernel, nil before.
	gateways atomic.Pointer[[]lb.Neighbour]
}

// foreignOn returns the foreign machines of a link.
func (r *Responder) foreignOn(linkName string) *foreignMachines {
	known, _ := r.foreignByLink.LoadOrStore(linkName, &foreignMachines{})
	return known.(*foreignMachines)
}

// recordAsker records the machine that asks for a planned address, if it is no speaker and asks for itself.
func (r *Responder) recordAsker(t *addressTable, c *foreignMachines, m message, frame []byte) {
	asksForItself := m.mac == lb.MAC(frame[offSource:offEtherType])
	if asksForItself && !t.desired.Speakers[m.mac] {
		c.record(familyIndex(lb.FamilyOf(m.target)), machine{
			addr:      m.sender,
			mac:       m.mac,
			lastHeard: r.system.clock(),
		})
	}
}

// record records a machine that asked for a planned address, or that answered. A machine that only asked displaces no
// machine that answered.
func (c *foreignMachines) record(family int, m machine) {
	if !m.addr.IsGlobalUnicast() && !m.addr.IsLinkLocalUnicast() {
		return
	}

	place := c.placeFor(family, m)
	if place == nil {
		return
	}

	known := place.Load()
	if known == nil {
		place.Store(&m)
		return
	}

	m.hasAnswered = m.hasAnswered || known.isSame(m) && known.hasAnswered
	isDue := m.lastHeard.Sub(known.lastHeard) >= machineInterval
	if isDue || m.hasAnswered && !known.hasAnswered {
		place.Store(&m)
	}
}

// placeFor returns where to record a machine: its own place, a free one, or the place of the machine that was silent
// longest. It returns nil if machines that answered within machineLifetime have all places.
func (c *foreignMachines) placeFor(family int, m machine) (place *atomic.Pointer[machine]) {
	places := &c.heard[family]
	for i := range places {
		known := places[i].Load()
		if known == nil || known.isSame(m) {
			return &places[i]
		}

		isSafe := known.hasAnswered && m.lastHeard.Sub(known.lastHeard) < machineLifetime
		isOldest := place == nil || known.lastHeard.Before(place.Load().lastHeard)
		if !isSafe && isOldest {
			place = &places[i]
		}
	}

	return place
}

// recordAnswer records that a machine answered for an address of its own, if it asked before.
func (r *Responder) recordAnswer(e *tap, m message) {
	c := r.foreignOn(e.link.Name)
	family := e.proto.index
	answering := machine{
		addr:        m.claimed,
		mac:         m.mac,
		lastHeard:   r.system.clock(),
		hasAnswered: true,
	}
	for i := range c.heard[family] {
		known := c.heard[family][i].Load()
		if known != nil && known.isSame(answering) {
			c.record(family, answering)
		}
	}
}

// setGateways takes the present gateways. It keeps a MAC that the kernel has forgotten: the
// kernel forgets machines that it cannot reach, and just those are to be asked.
func (c *foreignMachines) setGateways(gateways []lb.Neighbour) {
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

// pollGateways reads the kernel's gateways periodically until the context ends.
func (r *Responder) pollGateways(ctx context.Context) {
	tick := time.NewTicker(gatewayInterval)
	defer tick.Stop()
	for {
		for _, l := range r.config.Links() {
			if l.Usable() {
				r.foreignOn(l.Name).setGateways(r.config.Gateways(l.Index))
			}
		}

		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Networks returns the subnets of the links that announce, and the default gateways there as of the last ten seconds.
// Each appears once.
func (r *Responder) Networks() (subnets []netip.Prefix, gateways []netip.Addr) {
	for _, l := range r.config.Links() {
		if !l.Usable() {
			continue
		}

		for _, p := range l.Prefixes {
			subnet := p.Masked()
			isSubnet := !p.Addr().IsLinkLocalUnicast() && !p.IsSingleIP()
			if isSubnet && !slices.Contains(subnets, subnet) {
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

// Foreign returns at most n foreign machines on a link, each with an address of its own, as questions
// for Ask: an answer of any of them shows that the link works.
//
// The default gateways come first. Then come machines that asked for a planned address, of any speaker, in the last ten
// minutes: first the machines that answered a question of this node, each group latest first, IPv4 and IPv6
// alternately. Second addresses of the same machine come last.
func (r *Responder) Foreign(linkName string, n int) []lb.Question {
	machines, others := r.machinesNear(r.foreignOn(linkName), 0, 1)
	var out []lb.Question
	for _, m := range append(machines, others...) {
		out = append(out, lb.Question{
			Link:    linkName,
			MAC:     m.mac,
			Address: m.addr,
		})
	}

	return out[:min(n, len(out))]
}

// machinesNear returns the foreign machines of some families on a link in the order of Foreign, and the second
// addresses of the same machines apart from them.
func (r *Responder) machinesNear(c *foreignMachines, ofFamilies ...int) (machines, others []machine) {
	t := r.table.Load()
	known := make(map[lb.MAC]bool)
	add := func(m machine) {
		isOwn := t.desired.Speakers[m.mac] || t.entries.Has(m.addr)
		switch {
		case isOwn || !m.mac.IsUnicast():
		case known[m.mac]:
			others = append(others, m)
		default:
			known[m.mac] = true
			machines = append(machines, m)
		}
	}

	gateways := c.gateways.Load()
	if gateways != nil {
		for _, g := range *gateways {
			family := familyIndex(lb.FamilyOf(g.Address))
			if slices.Contains(ofFamilies, family) {
				add(machine{addr: g.Address, mac: g.MAC})
			}
		}
	}

	var heard [familyCount][]*machine
	for _, family := range ofFamilies {
		heard[family] = c.latest(family, r.system.clock())
	}

	for i := range maxMachines {
		for _, ofFamily := range heard {
			if i < len(ofFamily) {
				add(*ofFamily[i])
			}
		}
	}

	return machines, others
}

// latest returns the machines of a family that were heard within machineLifetime: first the machines that answered,
// each group latest first.
func (c *foreignMachines) latest(family int, at time.Time) []*machine {
	var out []*machine
	for i := range c.heard[family] {
		m := c.heard[family][i].Load()
		if m != nil && at.Sub(m.lastHeard) < machineLifetime {
			out = append(out, m)
		}
	}

	slices.SortFunc(out, func(a, b *machine) int {
		if a.hasAnswered == b.hasAnswered {
			return b.lastHeard.Compare(a.lastHeard)
		}

		if a.hasAnswered {
			return -1
		}

		return 1
	})

	return out
}
