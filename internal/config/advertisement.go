package config

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// compileL2Advertisements returns the advertisements, ordered by name.
func compileL2Advertisements(
	r *problemList,
	objects []*v1beta1.L2Advertisement,
	pools []*pool,
) []lb.L2Advertisement {
	var out []lb.L2Advertisement
	for _, o := range objects {
		object := lb.Object{Kind: KindL2Advertisement, Name: o.Name}
		a := lb.L2Advertisement{
			Name:  o.Name,
			Scope: compileScope(r, object, o.Spec.AdvertisementScope, pools),
			Links: slices.Clone(o.Spec.Interfaces),
		}
		for i, p := range o.Spec.PreferredNodeSelectors {
			field := fmt.Sprintf("spec.preferredNodeSelectors[%d].preference", i)
			a.Preferred = append(a.Preferred, lb.Preference{
				Weight:   int(p.Weight),
				Selector: selectorOrNothing(r, object, field, p.Preference),
			})
		}

		out = append(out, a)
	}

	slices.SortFunc(out, func(a, b lb.L2Advertisement) int {
		return cmp.Compare(a.Name, b.Name)
	})
	return out
}

// compileBGPAdvertisements returns the advertisements, oldest first.
func compileBGPAdvertisements(
	r *problemList,
	objects []*v1beta1.BGPAdvertisement,
	pools []*pool,
	peers []*v1beta1.BGPPeer,
	names aliases,
) []lb.BGPAdvertisement {
	var out []lb.BGPAdvertisement
	for _, o := range oldestFirst(objects) {
		object := lb.Object{Kind: KindBGPAdvertisement, Name: o.Name}
		a := lb.BGPAdvertisement{
			Name:                o.Name,
			Scope:               compileScope(r, object, o.Spec.AdvertisementScope, pools),
			AggregationLength:   int(valueOr(o.Spec.AggregationLength, 32)),
			AggregationLengthV6: int(valueOr(o.Spec.AggregationLengthV6, 128)),
			LocalPref:           uint32(o.Spec.LocalPref),
			Communities:         compileCommunities(r, object, o.Spec.Communities, names),
			Prepend:             uint8(o.Spec.ASPathPrepend),
			MED: lb.MED{
				Sent:  o.Spec.MED != nil,
				Value: uint32(valueOr(o.Spec.MED, 0)),
			},
			Peers: slices.Clone(o.Spec.Peers),
		}

		for _, name := range a.Peers {
			hasName := func(p *v1beta1.BGPPeer) bool { return p.Name == name }
			if !slices.ContainsFunc(peers, hasName) {
				r.add(object, lb.UnknownReference, "spec.peers names BGPPeer %q, which does not exist", name)
			}
		}

		if checkAggregation(r, object, &a, pools) {
			out = append(out, a)
		}
	}

	return out
}

// compileScope reads what an advertisement selects. Names of missing pools stay in the scope: without them it could
// become empty, which selects all pools.
func compileScope(r *problemList, object lb.Object, s v1beta1.AdvertisementScope, pools []*pool) lb.Scope {
	for _, name := range s.IPAddressPools {
		hasName := func(p *pool) bool { return p.Name == name }
		if !slices.ContainsFunc(pools, hasName) {
			r.add(object, lb.UnknownReference, "spec.ipAddressPools names IPAddressPool %q, which does not exist", name)
		}
	}

	return lb.Scope{
		Pools:            slices.Clone(s.IPAddressPools),
		PoolSelectors:    compileSelectors(r, object, "spec.ipAddressPoolSelectors", s.IPAddressPoolSelectors),
		NodeSelectors:    compileSelectors(r, object, "spec.nodeSelectors", s.NodeSelectors),
		ServiceSelectors: compileSelectors(r, object, "spec.serviceSelectors", s.ServiceSelectors),
	}
}

// checkAggregation reports whether the advertisement can be used at all. It removes a pool from the scope if an
// aggregate would also attract traffic for addresses outside of the pool.
func checkAggregation(r *problemList, object lb.Object, a *lb.BGPAdvertisement, pools []*pool) bool {
	v4 := a.AggregationLength
	v6 := a.AggregationLengthV6
	var fit, unfit []string
	for _, p := range pools {
		if !a.Scope.Selects(&p.Pool) {
			continue
		}

		entry, minLength, isTooSmall := findTooSmall(p, v4, v6)
		if !isTooSmall {
			fit = append(fit, p.Name)
			continue
		}

		unfit = append(unfit, p.Name)
		r.add(object, lb.InvalidAggregation, "not used for IPAddressPool %q: "+
			"routes of length %d would reach beyond its %s, which allows %d or longer",
			p.Name, lengthFor(entry, v4, v6), entry, minLength)
	}
	if len(unfit) == 0 {
		return true
	}

	slices.Sort(fit)
	a.Pools = fit
	a.PoolSelectors = nil
	return len(fit) > 0 // an empty scope would mean all pools
}

// Unadvertised returns a note for each pool that no advertisement selects although some of its addresses are held. This
// happens after a pool is renamed, if advertisements still have its former name. held returns the number of held
// addresses of a pool.
func Unadvertised(s lb.State, held func(pool string) int64) (out []lb.Problem) {
	for i := range s.Pools {
		p := &s.Pools[i]
		if held(p.Name) == 0 || isAdvertised(s, p) {
			continue
		}

		out = append(out, lb.Problem{
			Object: lb.Object{Kind: KindPool, Name: p.Name},
			Reason: lb.NoAdvertisement,
			Note:   true,
			Message: fmt.Sprintf("addresses of the pool are held and not announced, since no L2Advertisement and "+
				"no BGPAdvertisement selects it: add %q to spec.ipAddressPools of one", p.Name),
		})
	}

	return out
}

// isAdvertised reports whether an advertisement selects a pool.
func isAdvertised(s lb.State, p *lb.Pool) bool {
	byL2 := func(a lb.L2Advertisement) bool { return a.Selects(p) }
	byBGP := func(a lb.BGPAdvertisement) bool { return a.Selects(p) }
	return slices.ContainsFunc(s.L2Advertisements, byL2) || slices.ContainsFunc(s.BGPAdvertisements, byBGP)
}

// findTooSmall returns the first entry of the pool that contains no prefix of the wanted length, and the shortest
// length that it does contain. It returns false if there is no such entry. v4 and v6 are the wanted lengths. Of an
// entry that is a range, the largest prefix counts, as in MetalLB.
func findTooSmall(p *pool, v4, v6 int) (entry lb.Range, minLength int, found bool) {
	for _, e := range p.entries {
		want := lengthFor(e, v4, v6)
		if want == e.From.BitLen() {
			continue
		}

		shortest := shortestPrefix(e)
		if want < shortest {
			return e, shortest, true
		}
	}

	return lb.Range{}, 0, false
}

// lengthFor returns the length for the family of a range.
func lengthFor(r lb.Range, v4, v6 int) int {
	if lb.FamilyOf(r.From) == lb.IPv4 {
		return v4
	}
	return v6
}

// compileCommunities returns the communities sorted and without duplicates.
func compileCommunities(r *problemList, object lb.Object, texts []string, names aliases) []lb.Community {
	var out []lb.Community
	for i, text := range texts {
		c, err := names.lookup(text)
		switch {
		case err != nil:
			r.add(object, lb.InvalidCommunity, "spec.communities[%d] is not sent: %v", i, err)
		case slices.Contains(out, c):
			r.addNote(object, lb.InvalidCommunity, "spec.communities[%d] repeats %s: once is enough", i, c)
		default:
			out = append(out, c)
		}
	}

	slices.SortFunc(out, lb.Community.Compare)
	return out
}
