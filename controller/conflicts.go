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

// foreignClaim is the claim of an address of ours by a foreign machine.
type foreignClaim struct {
	// mac is the MAC address of the machine.
	mac string
	// node is the node that reports the claim.
	node string
}

// foreignClaims returns the claims that speakers report. The speaker's report must not be stale, and its node must be
// ready. If two speakers report the same address, the first node by name counts.
func (r reportTimes) foreignClaims(
	at time.Time,
	states []*v1beta1.SpeakerState,
	notReady map[string]bool,
) map[netip.Addr]foreignClaim {
	out := map[netip.Addr]foreignClaim{}
	for _, s := range states {
		if notReady[s.Name] || r.isStale(at, s.Name) {
			continue
		}

		for _, c := range s.Status.Conflicts {
			address, addressErr := netip.ParseAddr(c.Address)
			mac, macErr := net.ParseMAC(c.MAC)
			if addressErr != nil || macErr != nil {
				continue
			}

			first, ok := out[address]
			if !ok || s.Name <= first.node {
				out[address] = foreignClaim{mac: mac.String(), node: s.Name}
			}
		}
	}

	return out
}

// addressesFree returns the condition on addresses of a pool that foreign machines claim, and reports whether there are
// any. Retained addresses of the pool count too.
func addressesFree(ranges []lb.Range, u ipam.Usage, claims map[netip.Addr]foreignClaim) (metav1.Condition, bool) {
	var sentences []string
	for _, a := range slices.SortedFunc(maps.Keys(claims), netip.Addr.Compare) {
		isInPool := slices.ContainsFunc(ranges, func(r lb.Range) bool {
			return r.Contains(a)
		})
		isRetained := slices.ContainsFunc(u.Retained, func(r lb.Retention) bool {
			return r.Address == a
		})
		if !isInPool && !isRetained {
			continue
		}

		claim := claims[a]
		sentence := fmt.Sprintf("%s is claimed by %s (seen by node %s)", a, claim.mac, claim.node)
		sentences = append(sentences, sentence)
	}

	c := metav1.Condition{
		Type:    v1beta1.ConditionAddressesFree,
		Status:  metav1.ConditionFalse,
		Reason:  string(lb.AddressConflict),
		Message: lb.WithRemedies(lb.SomeOf(sentences), lb.AddressConflict),
	}
	return c, len(sentences) > 0
}
