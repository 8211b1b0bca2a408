package plan

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// A plan is joined of the effects of all groups. What is equal to the last plan stays the same slice, map or pointer,
// so that sinks see at once what differs.

// joinAddresses joins what belongs to single addresses.
func (p *planner) joinAddresses() {
	last, out := p.plan, &p.plan
	out.Owners = withEffects(p, last.Owners, func(e *addressEffects) (string, bool) {
		return e.owner, e.owner != ""
	})
	out.Yield = withEffects(p, last.Yield, func(e *addressEffects) (struct{}, bool) {
		return struct{}{}, e.yields
	})
	out.Advertised = withEffects(p, last.Advertised, func(e *addressEffects) (time.Time, bool) {
		return e.withdraws, e.isAdvertised
	})
	out.Announcements = withPointers(p, last.Announcements, lb.Announcement.Equal, announcementOf)
	out.Relays = withEffects(p, last.Relays, func(e *addressEffects) (lb.Relay, bool) {
		if e.relay == nil {
			return lb.Relay{}, false
		}
		return *e.relay, true
	})

	if !out.Advertised.Same(last.Advertised) {
		out.Withdraws = time.Time{}
		for _, until := range out.Advertised.All() {
			out.Withdraws = lb.Sooner(out.Withdraws, until)
		}
	}
	if !out.Relays.Same(last.Relays) {
		out.RelaysEnd = time.Time{}
		for _, relay := range out.Relays.All() {
			out.RelaysEnd = lb.Sooner(out.RelaysEnd, relay.Until)
		}
	}
}

func announcementOf(e *addressEffects) **lb.Announcement { return &e.announcement }

func frontendsOf(e *addressEffects) **[]lb.Frontend { return &e.frontends }

// withEffects returns a map of the last plan with what the groups that changed contribute.
func withEffects[V comparable](
	p *planner,
	last lb.Map[netip.Addr, V],
	read func(*addressEffects) (V, bool),
) lb.Map[netip.Addr, V] {
	value := func(a netip.Addr) (V, bool) { return read(p.at[a]) }
	return last.With(slices.Values(p.keys), value)
}

// withPointers is withEffects for pointers: a pointer of the last plan stays where its value is equal.
func withPointers[T any](
	p *planner,
	last lb.Map[netip.Addr, *T],
	equal func(a, b T) bool,
	read func(*addressEffects) **T,
) lb.Map[netip.Addr, *T] {
	value := func(a netip.Addr) (*T, bool) {
		one := read(p.at[a])
		if *one == nil {
			return nil, false
		}
		before := last.Of(a)
		if before != nil && equal(*before, **one) {
			*one = before
		}
		return *one, true
	}
	return last.With(slices.Values(p.keys), value)
}

// joinRoutes joins the routes with the prefixes that changed.
func (p *planner) joinRoutes() {
	prefixes := p.changedPrefixes()
	if len(prefixes) == 0 {
		return
	}
	t := newRouteTable(p.common.state.BGPAdvertisements)
	for _, g := range p.groupsWithin(prefixes) {
		for _, r := range p.table.Of(g).routes {
			if prefixes[r.prefix] {
				t.add(r)
			}
		}
	}

	p.conflicts = maps.Clone(p.conflicts)
	maps.DeleteFunc(p.conflicts, func(prefix netip.Prefix, _ string) bool { return prefixes[prefix] })
	if p.conflicts == nil {
		p.conflicts = map[netip.Prefix]string{}
	}
	maps.Copy(p.conflicts, t.conflicts)

	last, routes := p.plan.Routes, t.lists()
	value := func(prefix netip.Prefix) (*[]lb.Route, bool) {
		list, exists := routes[prefix]
		before := last.Of(prefix)
		if before != nil && reflect.DeepEqual(*before, list) {
			return before, exists
		}
		return &list, exists
	}
	p.plan.Routes = last.With(maps.Keys(prefixes), value)
}

// changedPrefixes returns the prefixes of the routes that may differ.
func (p *planner) changedPrefixes() map[netip.Prefix]bool {
	prefixes := map[netip.Prefix]bool{}
	ads := p.common.state.BGPAdvertisements
	areOther := p.last == nil || !reflect.DeepEqual(p.last.state.BGPAdvertisements, ads)
	for _, change := range p.changes {
		var before, after []routeTo
		if change.Before != nil {
			before = change.Before.routes
		}
		if change.After != nil {
			after = change.After.routes
		}
		if !areOther && slices.Equal(before, after) {
			continue
		}
		for _, r := range slices.Concat(before, after) {
			prefixes[r.prefix] = true
		}
	}
	return prefixes
}

// groupsWithin returns the groups that may have routes with some prefixes, in order.
func (p *planner) groupsWithin(prefixes map[netip.Prefix]bool) []*lb.Group {
	if len(prefixes) > len(p.groups.All)/8 {
		return p.groups.All
	}
	found := map[*lb.Group]bool{}
	for prefix := range prefixes {
		if !prefix.IsSingleIP() {
			return p.groups.All
		}
		g := p.groups.At(prefix.Addr())
		if g != nil {
			found[g] = true
		}
	}
	return slices.Collect(maps.Keys(found))
}

// joinVerdicts joins the verdicts, and puts a sentence on each Service of whose addresses a route has two values of an
// attribute.
func (p *planner) joinVerdicts() {
	last, verdicts := p.plan.Verdicts, map[lb.Key]*Verdict{}
	for _, change := range p.changes {
		for i, s := range change.Key.Services {
			switch {
			case change.After != nil:
				one := &change.After.verdicts[i]
				*one = keptVerdict(last.Of(s.Key), *one)
				verdicts[s.Key] = *one
			case verdicts[s.Key] == nil:
				verdicts[s.Key] = nil // another group may have the Service
			}
		}
	}
	p.contradict(verdicts)

	value := func(k lb.Key) (*Verdict, bool) {
		v := verdicts[k]
		return v, v != nil
	}
	p.plan.Verdicts = last.With(maps.Keys(verdicts), value)
}

// keptVerdict returns the verdict of the last plan if the new one is equal.
func keptVerdict(last, v *Verdict) *Verdict {
	if last != nil && reflect.DeepEqual(last, v) {
		return last
	}
	return v
}

// contradict adds to verdicts those on Services that have such a sentence, or had one in the last plan.
func (p *planner) contradict(verdicts map[lb.Key]*Verdict) {
	if len(p.conflicts) == 0 && len(p.contradicted) == 0 {
		return
	}
	had := map[lb.Key]bool{}
	for _, k := range p.contradicted {
		had[k] = true
	}

	p.contradicted = nil
	prefixes := slices.SortedFunc(maps.Keys(p.conflicts), netip.Prefix.Compare)
	for _, g := range p.groups.All {
		for i, s := range g.Services {
			own := p.table.Of(g).verdicts[i]
			sentence := contradicted(s, prefixes, p.conflicts)
			switch {
			case sentence != "":
				v := new(*own)
				v.BGP.Reason, v.BGP.Message = lb.ConflictingAdvertisements, sentence
				verdicts[s.Key] = keptVerdict(p.plan.Verdicts.Of(s.Key), v)
				p.contradicted = append(p.contradicted, s.Key)
			case had[s.Key]:
				verdicts[s.Key] = own
			}
		}
	}
}

// joinFilter joins the filter.
func (p *planner) joinFilter() {
	f, last := &p.plan.Filter, p.plan.Filter
	f.Pings = withEffects(p, last.Pings, func(e *addressEffects) (struct{}, bool) {
		return struct{}{}, e.answersPings
	})
	f.Frontends = withPointers(p, last.Frontends, equalFrontends, frontendsOf)
	f.Guarded = kept(last.Guarded, p.guarded(&p.state, p.groups))

	hasExceptions := func(e *effects) bool { return len(e.exceptions) > 0 }
	isOther := p.last == nil || p.last.version != p.version
	if !isOther && !p.haveChanged(hasExceptions) {
		return
	}
	p.exceptions = nil
	for _, g := range p.groups.All {
		p.exceptions = append(p.exceptions, p.table.Of(g).exceptions...)
	}
	f.Reset = kept(last.Reset, p.reset(p.exceptions))
	f.Open = kept(last.Open, p.open(p.exceptions))
}

func equalFrontends(a, b []lb.Frontend) bool { return slices.EqualFunc(a, b, lb.Frontend.Equal) }

// haveChanged reports whether effects of a kind have changed.
func (p *planner) haveChanged(isOfKind func(*effects) bool) bool {
	for _, change := range p.changes {
		wasOfKind := change.Before != nil && isOfKind(change.Before)
		if wasOfKind || change.After != nil && isOfKind(change.After) {
			return true
		}
	}
	return false
}

// joinWays joins what concerns proxied Services.
func (p *planner) joinWays() {
	hasWays := func(e *effects) bool { return e.ways != nil }
	if !p.haveChanged(hasWays) {
		return
	}

	out := &p.plan
	out.ClosedNodePorts, out.Diversions, out.Proxied = nil, nil, nil
	for _, g := range p.groups.All {
		w := p.table.Of(g).ways
		if w == nil {
			continue
		}
		out.ClosedNodePorts = append(out.ClosedNodePorts, w.nodePorts...)
		out.Diversions = append(out.Diversions, w.diversions...)
		out.Proxied = append(out.Proxied, w.proxied...)
	}
	slices.Sort(out.ClosedNodePorts)
	out.ClosedNodePorts = slices.Compact(out.ClosedNodePorts)
	out.Diversions = diversions(out.Diversions)
	slices.SortFunc(out.Proxied, lb.Key.Compare)
}

// kept returns a list of the last plan if the new one is equal.
func kept[T comparable](last, list []T) []T {
	if slices.Equal(last, list) {
		return last
	}
	return list
}
