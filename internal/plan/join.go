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
	out.Owners = withEffects(p, last.Owners, ownerOf)
	out.Yield = withEffects(p, last.Yield, yieldOf)
	out.Announcements = withPointers(
		p,
		last.Announcements,
		lb.Announcement.Equal,
		announcementOf,
	)
	out.Advertised = withEffects(p, last.Advertised, withdrawalOf)
	out.Relays = withEffects(p, last.Relays, relayOf)

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

func ownerOf(e *addressEffects) (owner string, exists bool) {
	return e.owner, e.owner != ""
}

func yieldOf(e *addressEffects) (yield struct{}, exists bool) {
	return yield, e.yields
}

func withdrawalOf(e *addressEffects) (at time.Time, exists bool) {
	return e.withdraws, e.isAdvertised
}

func relayOf(e *addressEffects) (relay lb.Relay, exists bool) {
	if e.relay == nil {
		return relay, false
	}
	return *e.relay, true
}

func pingOf(e *addressEffects) (ping struct{}, exists bool) {
	return ping, e.answersPings
}

func announcementOf(e *addressEffects) **lb.Announcement {
	return &e.announcement
}

func frontendsOf(e *addressEffects) **[]lb.Frontend {
	return &e.frontends
}

// withEffects returns a map of the last plan with what the groups that changed contribute.
func withEffects[V comparable](
	p *planner,
	last lb.Map[netip.Addr, V],
	read func(*addressEffects) (V, bool),
) lb.Map[netip.Addr, V] {
	value := func(a netip.Addr) (V, bool) {
		return read(p.at[a])
	}
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
		isSame := before != nil && equal(*before, **one)
		if isSame {
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
		one := p.table.Of(g)
		for _, r := range one.routes {
			if prefixes[r.prefix] {
				t.add(r)
			}
		}
	}

	p.replaceConflicts(prefixes, t.conflicts())

	last := p.plan.Routes
	routes := t.lists()
	value := func(prefix netip.Prefix) (*[]lb.Route, bool) {
		list, exists := routes[prefix]
		before := last.Of(prefix)
		isSame := before != nil && reflect.DeepEqual(*before, list)
		if isSame {
			return before, exists
		}
		return &list, exists
	}
	changed := maps.Keys(prefixes)
	p.plan.Routes = last.With(changed, value)
}

// replaceConflicts replaces the conflicts of some prefixes.
func (p *planner) replaceConflicts(
	prefixes map[netip.Prefix]bool,
	conflicts map[netip.Prefix]string,
) {
	all := map[netip.Prefix]string{}
	for prefix, sentence := range p.conflicts {
		if !prefixes[prefix] {
			all[prefix] = sentence
		}
	}

	maps.Copy(all, conflicts)
	p.conflicts = all
}

// changedPrefixes returns the prefixes of the routes that may differ.
func (p *planner) changedPrefixes() map[netip.Prefix]bool {
	prefixes := map[netip.Prefix]bool{}
	isOther := p.areRoutesOther()
	for _, change := range p.changes {
		var before, after []routeTo
		if change.Before != nil {
			before = change.Before.routes
		}
		if change.After != nil {
			after = change.After.routes
		}
		if !isOther && slices.Equal(before, after) {
			continue
		}
		for _, r := range slices.Concat(before, after) {
			prefixes[r.prefix] = true
		}
	}

	return prefixes
}

// areRoutesOther reports whether advertisements give routes other attributes than in the last plan.
func (p *planner) areRoutesOther() bool {
	if p.last == nil {
		return true
	}

	before := p.last.state.BGPAdvertisements
	ads := p.common.state.BGPAdvertisements
	return !reflect.DeepEqual(before, ads)
}

// groupsWithin returns the groups that may have routes with some prefixes, in order.
func (p *planner) groupsWithin(prefixes map[netip.Prefix]bool) []*lb.Group {
	areMany := len(prefixes) > len(p.groups.All)/8
	if areMany {
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
	last := p.plan.Verdicts
	verdicts := map[lb.Key]*Verdict{}
	for _, change := range p.changes {
		for i, s := range change.Key.Services {
			switch {
			case change.After != nil:
				one := &change.After.verdicts[i]
				before := last.Of(s.Key)
				*one = keptVerdict(before, *one)
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
	changed := maps.Keys(verdicts)
	p.plan.Verdicts = last.With(changed, value)
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
	all := maps.Keys(p.conflicts)
	prefixes := slices.SortedFunc(all, netip.Prefix.Compare)

	for _, g := range p.groups.All {
		one := p.table.Of(g)
		for i, s := range g.Services {
			own := one.verdicts[i]
			sentence := contradicted(s, prefixes, p.conflicts)
			switch {
			case sentence != "":
				v := new(*own)
				v.BGP.Reason = lb.ConflictingAdvertisements
				v.BGP.Message = sentence
				before := p.plan.Verdicts.Of(s.Key)
				verdicts[s.Key] = keptVerdict(before, v)
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
	f.Pings = withEffects(p, last.Pings, pingOf)
	f.Frontends = withPointers(
		p,
		last.Frontends,
		equalFrontends,
		frontendsOf,
	)
	guarded := p.guarded(&p.state, p.groups)
	f.Guarded = kept(last.Guarded, guarded)

	hasExceptions := func(e *effects) bool {
		return len(e.exceptions) > 0
	}
	isFirst := p.last == nil
	isOther := isFirst || p.last.version != p.version
	if !isOther && !p.haveChanged(hasExceptions) {
		return
	}

	p.exceptions = nil
	for _, g := range p.groups.All {
		one := p.table.Of(g)
		p.exceptions = append(p.exceptions, one.exceptions...)
	}

	reset := p.reset(p.exceptions)
	f.Reset = kept(last.Reset, reset)
	open := p.open(p.exceptions)
	f.Open = kept(last.Open, open)
}

func equalFrontends(a, b []lb.Frontend) bool {
	return slices.EqualFunc(a, b, lb.Frontend.Equal)
}

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
	hasWays := func(e *effects) bool {
		return e.ways != nil
	}
	if !p.haveChanged(hasWays) {
		return
	}

	out := &p.plan
	out.ClosedNodePorts = nil
	out.Diversions = nil
	out.Proxied = nil

	for _, g := range p.groups.All {
		one := p.table.Of(g)
		w := one.ways
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
	isSame := slices.Equal(last, list)
	if isSame {
		return last
	}
	return list
}
