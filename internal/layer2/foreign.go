package layer2

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/link"
)

const (
	// mostMachines are remembered of each family on a link, those heard last.
	mostMachines = 8
	// machineAge is how long a machine is worth asking after it was heard: one that has
	// our address in its cache and gets answers says no word for a while.
	machineAge = 10 * time.Minute
	// machineInterval is how often it is noted that the same one was heard, and how long
	// one is safe from being replaced.
	machineInterval = time.Second
	// gatewayInterval is how often the kernel is asked for its gateways.
	gatewayInterval = 10 * time.Second
)

// machine is a host on a link that is no speaker's.
type machine struct {
	addr netip.Addr
	mac  link.MAC
	seen time.Time
}

// circle is the machines that were heard on a link.
type circle struct {
	// heard of each family. Only the reader of that family writes, so that it needs no lock.
	heard [families][mostMachines]atomic.Pointer[machine]
	// gateways as the kernel knew them last.
	gateways atomic.Pointer[[]link.Neighbour]
}

// circles by the name of the link. They outlive its ports.
type circles struct{ byLink sync.Map }

func (c *circles) on(name string) *circle {
	if known, ok := c.byLink.Load(name); ok {
		return known.(*circle)
	}
	known, _ := c.byLink.LoadOrStore(name, &circle{})
	return known.(*circle)
}

// meet notes who asked for an address of ours.
func (c *circle) meet(family int, m message, now time.Time) {
	if !m.sender.IsGlobalUnicast() && !m.sender.IsLinkLocalUnicast() {
		return
	}
	heard := &c.heard[family]
	place := &heard[0]
	for i := range heard {
		known := heard[i].Load()
		if known == nil {
			place = &heard[i]
			break
		}
		if known.mac == m.mac && known.addr == m.sender {
			place = &heard[i]
			break
		}
		if known.seen.Before(place.Load().seen) {
			place = &heard[i]
		}
	}
	if known := place.Load(); known == nil || now.Sub(known.seen) >= machineInterval {
		place.Store(&machine{addr: m.sender, mac: m.mac, seen: now})
	}
}

// learn takes the gateways that there are. What the kernel has forgotten of one we
// still know: it forgets whom it cannot reach, and then it is asked for.
func (c *circle) learn(gateways []link.Neighbour) {
	before := c.gateways.Load()
	for i := range gateways {
		g := &gateways[i]
		if g.MAC != (link.MAC{}) || before == nil {
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

// learnGateways asks the kernel now and then until the context ends.
func (r *Responder) learnGateways(ctx context.Context) {
	again := time.NewTicker(gatewayInterval)
	defer again.Stop()
	for {
		for _, l := range r.links() {
			if l.Usable() {
				r.circles.on(l.Name).learn(r.gateways(l.Index))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// Foreign returns at most n machines on a link that are no speakers, each with an
// address of its own, for Ask: whether any of them answers shows whether the link works.
//
// The default gateways come first, then who asked for an address of ours in the last
// ten minutes, the latest first, IPv4 and IPv6 in turns; a machine comes twice only
// behind all others. Where this node announces nothing on the link it hears no
// questions there, and knows the gateways only.
func (r *Responder) Foreign(linkName string, n int) []Question {
	t, c := r.table.Load(), r.circles.on(linkName)
	var out, again []Question
	known := make(map[link.MAC]bool)
	add := func(addr netip.Addr, mac link.MAC) {
		q := Question{Link: linkName, MAC: mac, Address: addr}
		switch {
		case !mac.IsUnicast() || t.speakers[mac] || t.entries[addr] != nil:
		case known[mac]:
			again = append(again, q)
		default:
			known[mac] = true
			out = append(out, q)
		}
	}
	if gateways := c.gateways.Load(); gateways != nil {
		for _, g := range *gateways {
			add(g.Address, g.MAC)
		}
	}
	heard := [families][]*machine{c.latest(0, r.now()), c.latest(1, r.now())}
	for i := range mostMachines {
		for _, machines := range heard {
			if i < len(machines) {
				add(machines[i].addr, machines[i].mac)
			}
		}
	}
	out = append(out, again...)
	return out[:min(n, len(out))]
}

// latest returns the machines of a family that were heard lately, the latest first.
func (c *circle) latest(family int, now time.Time) []*machine {
	var out []*machine
	for i := range c.heard[family] {
		if m := c.heard[family][i].Load(); m != nil && now.Sub(m.seen) < machineAge {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b *machine) int { return b.seen.Compare(a.seen) })
	return out
}
