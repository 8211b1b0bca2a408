package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// reportConflicts reports advertisements that give a route another attribute than an older one does. The older one's is
// used.
func reportConflicts(r *report, s lb.State, pools []pool) {
	for i, younger := range s.BGPAdvertisements {
		for _, older := range s.BGPAdvertisements[:i] {
			differ := differences(older, younger)
			if len(differ) == 0 || !peersMeet(older, younger) || !nodesMeet(s, older, younger) || !routesMeet(s, older, younger, pools) {
				continue
			}
			r.fault(lb.Object{Kind: KindBGPAdvertisement, Name: younger.Name}, lb.ConflictingAdvertisements,
				"BGPAdvertisement %q is older and gives the same routes other values, which are used there: %s; write the same, or let the two select other pools, Services, nodes or peers",
				older.Name, strings.Join(differ, ", "))
		}
	}
}

// differences lists the attributes of which a route can have one only.
func differences(older, younger lb.BGPAdvertisement) (out []string) {
	if older.LocalPref != younger.LocalPref {
		out = append(out, fmt.Sprintf("localPref %d, not %d", older.LocalPref, younger.LocalPref))
	}
	if older.MED != younger.MED {
		out = append(out, fmt.Sprintf("med %s, not %s", older.MED, younger.MED))
	}
	if older.Prepend != younger.Prepend {
		out = append(out, fmt.Sprintf("asPathPrepend %d, not %d", older.Prepend, younger.Prepend))
	}
	return out
}

func peersMeet(a, b lb.BGPAdvertisement) bool {
	return len(a.Peers) == 0 || len(b.Peers) == 0 || slices.ContainsFunc(a.Peers, func(p string) bool { return slices.Contains(b.Peers, p) })
}

func nodesMeet(s lb.State, a, b lb.BGPAdvertisement) bool {
	if len(a.NodeSelectors) == 0 || len(b.NodeSelectors) == 0 {
		return true
	}
	for _, n := range s.Nodes {
		if lb.MatchesAny(a.NodeSelectors, n.Labels) && lb.MatchesAny(b.NodeSelectors, n.Labels) {
			return true
		}
	}
	return false
}

// routesMeet reports whether both make one and the same prefix of an address.
func routesMeet(s lb.State, a, b lb.BGPAdvertisement, pools []pool) bool {
	for _, p := range pools {
		if !selectsPool(a.Scope, p) || !selectsPool(b.Scope, p) {
			continue
		}
		for _, e := range p.entries {
			if lengthFor(e, a.AggregationLength, a.AggregationLengthV6) == lengthFor(e, b.AggregationLength, b.AggregationLengthV6) && servicesMeet(s, a, b, e) {
				return true
			}
		}
	}
	return false
}

// servicesMeet reports whether both select a Service with an address of a range. Without selectors they would select any.
func servicesMeet(s lb.State, a, b lb.BGPAdvertisement, e lb.Range) bool {
	if len(a.ServiceSelectors) == 0 && len(b.ServiceSelectors) == 0 {
		return true
	}
	selected := func(ad lb.BGPAdvertisement, v lb.Service) bool {
		return len(ad.ServiceSelectors) == 0 || lb.MatchesAny(ad.ServiceSelectors, v.Labels)
	}
	return slices.ContainsFunc(s.Services, func(v lb.Service) bool {
		return selected(a, v) && selected(b, v) && slices.ContainsFunc(v.Addresses, e.Contains)
	})
}
