package main

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/filter"
	"github.com/holdfast-lb/holdfast/internal/kernel"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// guard is the packet filter of this node, or keeps it removed if filtering is off.
type guard struct {
	kept
	table *filter.Table
	node  string
	// podLinks are prefixes of the names of pods' links, beside those that network plugins use.
	podLinks []string
	// kernel knows what the node's kernel lacks for the filter.
	kernel *kernel.Monitor
}

// newGuard returns a guard that kicks when the filter fails or works again, and when it refuses other Services.
func newGuard(log *slog.Logger, s settings, lacks *kernel.Monitor, kick func()) *guard {
	g := &guard{node: s.nodeName, podLinks: s.podLinks, kernel: lacks}
	g.table = filter.New(filter.Config{Log: log, Changed: func() {
		if g.failed() {
			g.kernel.Recheck()
		}
		kick()
	}})
	g.kept = kept{table: g.table, on: !s.Options.NoFilter}
	return g
}

// set makes the kernel enforce the plan's filter; relayed is that of filter.Desired.
func (g *guard) set(p plan.Plan, relayed []netip.Addr, node lb.Node, links []lb.Interface) error {
	if !g.on {
		return g.remove()
	}
	own := node.Own(link.Addresses(links))
	pods := link.PodLinks(links, own, announcing(p.Announcements), g.podLinks)
	d := filter.Desired{Filter: p.Filter, PodLinks: pods, Addresses: own, Relayed: relayed}
	if err := g.table.Set(possible(d, g.kernel)); err != nil {
		return fmt.Errorf("set filter: %w", err)
	}
	return nil
}

// announcing returns the names of the links to which announcements are restricted.
func announcing(announcements []lb.Announcement) []string {
	var out []string
	for _, a := range announcements {
		for _, name := range a.Links {
			if !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out
}

// inForce reports whether the kernel enforces the filter that was set last.
func (g *guard) inForce() bool {
	if !g.on {
		return false
	}
	ok, _ := g.table.Enforced()
	return ok
}

// failed reports whether the filter has not been in force for longer than a rebuild takes.
func (g *guard) failed() bool { return g.on && g.table.Failed() }

// refused returns the Services that the filter closes because of their source ranges; nil for none.
func (g *guard) refused() map[lb.Key]bool {
	if !g.on {
		return nil
	}
	var out map[lb.Key]bool
	for k := range g.table.Refused() {
		if out == nil {
			out = make(map[lb.Key]bool)
		}
		out[k] = true
	}
	return out
}

func (g *guard) state() any {
	if !g.on {
		return "off"
	}
	return g.table.State()
}

// why says what keeps the filter from being in force.
func (g *guard) why() string {
	for _, l := range g.kernel.Missing() {
		if l.Feature == kernel.PacketFilter {
			return l.Problem(lb.Object{Kind: config.KindNode, Name: g.node}).Message
		}
	}
	return "see the log of its speaker"
}

// problems returns why the filter, or the kernel's ARP, does not work as it should on this node.
func (g *guard) problems(links []lb.Interface) []lb.Problem {
	var out []lb.Problem
	object := lb.Object{Kind: config.KindNode, Name: g.node}
	if g.failed() {
		out = append(out, lb.Problem{Object: object, Reason: lb.FilterNotInForce,
			Message: fmt.Sprintf("node %s cannot keep its packet filter in force and withholds addresses with source ranges: %s", g.node, g.why())})
	}
	if closed := g.refused(); closed != nil {
		services, why := slices.SortedFunc(maps.Keys(closed), lb.Key.Compare), g.table.Refused()
		var names []string
		for _, k := range services {
			names = append(names, k.String())
		}
		out = append(out, lb.Problem{Object: object, Reason: lb.RangesRefused,
			Message: fmt.Sprintf("node %s cannot enforce the source ranges of %s, and closes these Services: %s", g.node, lb.SomeOf(names), why[services[0]])})
	}
	if past := link.Bypass(links); past != "" && g.on {
		out = append(out, lb.Problem{Object: object, Reason: lb.FilterNotEnforceable,
			Message: fmt.Sprintf("node %s may carry packets past its packet filter, which then enforces nothing: %s", g.node, past)})
	}
	if link.LooseARP(links) {
		out = append(out, lb.Problem{Object: object, Reason: lb.StrictARPMissing,
			Message: fmt.Sprintf("node %s answers ARP for every address of a Service: kube-proxy in mode IPVS needs strictARP: true", g.node)})
	}
	return out
}
