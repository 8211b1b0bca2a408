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
	mac  link.MAC
	seen time.Time
}

// foreignMachines has the foreign machines that were heard on a link.
type foreignMachines struct {
	// heard by family. Only the reader of that family writes, so it needs no lock.
	heard [families][mostMachines]atomic.Pointer[machine]
	// gateways as last read from the kernel.
	gateways atomic.Pointer[[]link.Neighbour]
}

// foreignByLink are keyed by link name. They outlive ports.
type foreignByLink struct{ byLink sync.Map }

func (c *foreignByLink) on(name string) *foreignMachines {
	if known, ok := c.byLink.Load(name); ok {
		return known.(*foreignMachines)
	}
	known, _ := c.byLink.LoadOrStore(name, &foreignMachines{})
	return known.(*foreignMachines)
}

// meet records a machine that asked for one of our addresses.
func (c *foreignMachines) record(family int, m message, now time.Time) {
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

// learn takes the present gateways. It keeps a MAC that the kernel has forgotten: the
// kernel forgets machines that it cannot reach, which is when we need to ask them.
func (c *foreignMachines) learn(gateways []link.Neighbour) {
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

// learnGateways reads the kernel's gateways periodically until the context ends.
func (r *Responder) learnGateways(ctx context.Context) {
	again := time.NewTicker(gatewayInterval)
	defer again.Stop()
	for {
		for _, l := range r.links() {
			if l.Usable() {
				r.foreignByLink.on(l.Name).learn(r.gateways(l.Index))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// Foreign returns at most n foreign machines on a link, each with an address of its own,
// for Ask: an answer of any of them shows that the link works.
//
// The default gateways come first, then machines that asked for one of our addresses in
// the last ten minutes, latest first, IPv4 and IPv6 by turns. Second addresses of the same
// machine come last. On a link where this node announces nothing it hears no questions
// and knows only the gateways.
func (r *Responder) Foreign(linkName string, n int) []Question {
	t, c := r.table.Load(), r.foreignByLink.on(linkName)
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

// latest returns the recently heard machines of a family, latest first.
func (c *foreignMachines) latest(family int, now time.Time) []*machine {
	var out []*machine
	for i := range c.heard[family] {
		if m := c.heard[family][i].Load(); m != nil && now.Sub(m.seen) < machineAge {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b *machine) int { return b.seen.Compare(a.seen) })
	return out
}
