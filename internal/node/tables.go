package node

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/filter"
	"github.com/holdfast-lb/holdfast/internal/kernel"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/relay"
)

// Settings are the flags that sinks of a node follow.
type Settings struct {
	Options config.Options
	// PodLinks are prefixes of the names of pods' links, in addition to the names that network plugins use.
	PodLinks []string
	// Relay reports whether this node relays older connections.
	Relay bool
	// EgressExceptions are destinations that pods reach from the addresses of their nodes.
	EgressExceptions []netip.Prefix
}

// Filter sets the packet filter of this node, or removes it if filtering is off.
type Filter struct {
	Table *filter.Table
	// on reports whether this node filters. Otherwise the table of an earlier run is removed.
	on bool
	// podLinks are prefixes of the names of pods' links, in addition to the names that network plugins use.
	podLinks []string
	// kernel knows which features of the filter the node's kernel lacks.
	kernel *kernel.Monitor
	// announced are the announcements of the last plan. named counts them for each link that they name.
	announced lb.Map[netip.Addr, *lb.Announcement]
	named     map[string]int
}

// NewFilter returns a Filter. It kicks when the filter fails or recovers, and when the refused Services change.
func NewFilter(
	log *slog.Logger,
	s Settings,
	lacks *kernel.Monitor,
	kick func(),
) *Filter {
	g := &Filter{
		podLinks: s.PodLinks,
		kernel:   lacks,
		on:       s.Options.Filters(),
		named:    map[string]int{},
	}
	changed := func() {
		if g.failed() {
			g.kernel.Recheck()
		}
		kick()
	}
	g.Table = filter.New(log, changed)
	return g
}

// set makes the kernel enforce the plan's filter. Relayed is the field of filter.Desired.
func (g *Filter) set(
	p plan.Plan,
	relayed lb.Map[netip.Addr, struct{}],
	node lb.Node,
	links []lb.Interface,
) error {
	if !g.on {
		return g.Table.Remove()
	}

	own := node.Own(link.Addresses(links))
	announcing := g.announcing(p.Announcements)
	d := filter.Desired{
		Filter:    p.Filter,
		PodLinks:  link.PodLinks(links, own, announcing, g.podLinks),
		Addresses: own,
		Relayed:   relayed,
	}
	err := g.Table.Set(possible(d, g.kernel))
	if err != nil {
		return fmt.Errorf("set filter: %w", err)
	}

	return nil
}

// possible returns the filter without the features that the kernel lacks: it would refuse the whole filter.
func possible(d filter.Desired, k *kernel.Monitor) filter.Desired {
	d.NoLog = k.Lacks(kernel.DropLogs)
	d.NoLimits = k.Lacks(kernel.ConnectionLimits)
	d.NoInternal = k.Lacks(kernel.InternalTraffic)
	d.NoRoutes = k.Lacks(kernel.PodRoutes)
	return d
}

// announcing returns the names of the links to which announcements are restricted.
func (g *Filter) announcing(
	announcements lb.Map[netip.Addr, *lb.Announcement],
) []string {
	count := func(a *lb.Announcement, n int) {
		if a == nil {
			return
		}
		for _, name := range a.Links {
			g.named[name] += n
			if g.named[name] == 0 {
				delete(g.named, name)
			}
		}
	}
	recount := func(_ netip.Addr, before, a *lb.Announcement, _, _ bool) {
		count(before, -1)
		count(a, 1)
	}
	g.announced.Changes(announcements, recount)
	g.announced = announcements

	names := maps.Keys(g.named)
	return slices.Collect(names)
}

// inForce reports whether the kernel enforces the last filter.
func (g *Filter) inForce() bool {
	ok, _ := g.Table.Enforced()
	return ok && g.on
}

// failed reports whether the filter has not been in force for longer than a rebuild takes.
func (g *Filter) failed() bool {
	return g.on && g.Table.Failed()
}

// refused returns the Services that the filter closes because of their source ranges.
func (g *Filter) refused() lb.Map[lb.Key, struct{}] {
	var refused []lb.Key
	for service := range g.Table.Refused() {
		refused = append(refused, service)
	}
	return lb.SetOf(refused...)
}

// why returns the reason why the filter is not in force.
func (g *Filter) why(node lb.Object) string {
	for _, l := range g.kernel.Missing() {
		if l.Feature == kernel.PacketFilter {
			return l.Problem(node).Message
		}
	}
	return "see the log of its speaker"
}

// Relays sets the relays of this node, or removes them if relaying is off.
type Relays struct {
	*relay.Relayer
	on bool
	// list and ended are the inputs of the last call of relayed, and addresses is its result.
	list      lb.Map[netip.Addr, lb.Relay]
	ended     map[netip.Addr]time.Time
	addresses lb.Map[netip.Addr, struct{}]
}

// NewRelays returns Relays. It kicks when some of them end.
func NewRelays(
	log *slog.Logger,
	s Settings,
	links func() []lb.Interface,
	kick func(),
) *Relays {
	relayer := relay.New(relay.Config{
		Log:     log,
		Links:   links,
		Changed: kick,
	})
	return &Relays{Relayer: relayer, on: s.Relay}
}

// set makes the kernel relay the desired addresses.
func (r *Relays) set(d relay.Desired) error {
	if !r.on {
		return r.Remove()
	}

	r.Set(d)
	return nil
}

// inherited returns the relays of an earlier run: relayed address to an address of the former owner.
func (r *Relays) inherited() map[netip.Addr]netip.Addr {
	out := map[netip.Addr]netip.Addr{}
	for a, inherited := range r.Inherited() {
		out[a] = inherited.Via
	}
	return out
}

// lasting returns the addresses that the kernel has relayed since an earlier run.
func (r *Relays) lasting() lb.Map[netip.Addr, struct{}] {
	var out []netip.Addr
	for a, inherited := range r.Inherited() {
		if r.on && !inherited.Ended {
			out = append(out, a)
		}
	}
	return lb.SetOf(out...)
}

// relayed returns the addresses whose older connections this node relays to another node.
func (r *Relays) relayed(
	list lb.Map[netip.Addr, lb.Relay],
) lb.Map[netip.Addr, struct{}] {
	ended := r.Ended()
	if !lb.SameMap(ended, r.ended) {
		r.list = lb.Map[netip.Addr, lb.Relay]{}
		r.addresses = lb.Map[netip.Addr, struct{}]{}
	}

	var changed []netip.Addr
	add := func(a netip.Addr, _, _ lb.Relay, _, _ bool) {
		changed = append(changed, a)
	}
	r.list.Changes(list, add)
	r.list, r.ended = list, ended

	isRelayed := func(a netip.Addr) (v struct{}, has bool) {
		one := list.Of(a)
		start, hasEnded := ended[a]
		isSameRelay := one.Start.IsZero() || one.Start.Equal(start)
		isOver := hasEnded && isSameRelay
		return v, one.Via.IsValid() && !isOver
	}
	at := slices.Values(changed)
	r.addresses = r.addresses.With(at, isRelayed)
	return r.addresses
}
