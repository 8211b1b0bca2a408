package ipam

import (
	"fmt"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// tell says what the Service holds in the end and, where that is not all it
// wants, why.
func (a *assigner) tell(i int) Assignment {
	svc := &a.state.Services[i]
	out := Assignment{Service: svc.Key}
	for _, addr := range a.held[i] {
		if !addr.IsValid() {
			continue
		}
		pool := ""
		if s := a.index.find(addr); s != nil {
			pool = s.Name
		}
		out.Addresses = append(out.Addresses, addr)
		out.Pools = append(out.Pools, pool)
	}
	out.Reason, out.Message = a.verdict(i, out)
	return out
}

func (a *assigner) verdict(i int, has Assignment) (lb.Reason, string) {
	svc := &a.state.Services[i]
	if reason, message, never := hopeless(svc); never {
		return reason, message
	}
	_, l := a.find(svc, a.held[i])
	holds := describe(has)
	switch {
	case l != nil && len(has.Addresses) == 0:
		return l.reason, l.message
	case l != nil && svc.FamilyPolicy == lb.PreferDualStack && isShortage(l.reason):
		return lb.PartlyAssigned, fmt.Sprintf("has %s; %s", holds, l.message)
	case l != nil:
		return l.reason, fmt.Sprintf("keeps %s; %s", holds, l.message)
	}
	for _, pool := range has.Pools {
		// An address in no pool may have been cut from the very pool that is asked for.
		if svc.RequestedPool != "" && pool != "" && pool != svc.RequestedPool {
			return lb.AddressKept, fmt.Sprintf("keeps %s although it asks for pool %q: to move, ask for an address of that pool by value", holds, svc.RequestedPool)
		}
	}
	return lb.Assigned, "has " + holds
}

// isShortage tells a family that could not be had from a request that failed.
func isShortage(r lb.Reason) bool {
	return r == lb.NoPool || r == lb.NoFamily || r == lb.PoolExhausted
}

func describe(has Assignment) string {
	words := make([]string, len(has.Addresses))
	for i, addr := range has.Addresses {
		if has.Pools[i] == "" {
			words[i] = fmt.Sprintf("%s, which is in no pool any more", addr)
			continue
		}
		words[i] = fmt.Sprintf("%s from pool %q", addr, has.Pools[i])
	}
	return strings.Join(words, " and ")
}
