package main

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// conflict is a foreign machine that claims an address of ours, with the node that reports it.
type conflict struct {
	mac, node string
}

// conflicts returns those reported by speakers that still write and whose nodes are not NotReady. If two report the
// same address it takes the first by name.
func (r reports) conflicts(
	now time.Time,
	states []*v1beta1.SpeakerState,
	notReady map[string]bool,
) map[netip.Addr]conflict {
	out := map[netip.Addr]conflict{}
	for _, s := range states {
		if notReady[s.Name] || r.stale(now, s.Name) {
			continue
		}
		for _, a := range s.Status.Conflicts {
			address, err := netip.ParseAddr(a.Address)
			mac, err2 := net.ParseMAC(a.MAC)
			if first, taken := out[address]; err != nil || err2 != nil || taken && first.node < s.Name {
				continue
			}
			out[address] = conflict{mac.String(), s.Name}
		}
	}
	return out
}

// free returns the condition on addresses of a pool that foreign machines claim, if there
// are any. Retained addresses of the pool count too.
func free(ranges []lb.Range, u ipam.Usage, all map[netip.Addr]conflict) (metav1.Condition, bool) {
	c := metav1.Condition{
		Type:   v1beta1.ConditionAddressesFree,
		Status: metav1.ConditionFalse,
		Reason: string(lb.AddressConflict),
	}
	var claims []string
	for _, a := range slices.SortedFunc(maps.Keys(all), netip.Addr.Compare) {
		in := slices.ContainsFunc(ranges, func(r lb.Range) bool { return r.Contains(a) })
		if in || slices.ContainsFunc(u.Retained, func(r lb.Retention) bool { return r.Address == a }) {
			claims = append(claims, fmt.Sprintf("%s is claimed by %s (seen by node %s)", a, all[a].mac, all[a].node))
		}
	}
	c.Message = lb.WithRemedies(lb.SomeOf(claims), lb.AddressConflict)
	return c, len(claims) > 0
}
