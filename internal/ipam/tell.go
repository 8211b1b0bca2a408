package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// tell says what the Service holds in the end and, where that is not all it
// wants, why.
func (a *assigner) tell(s *subject) Assignment {
	out := a.holding(s)
	out.Reason, out.Message = a.verdict(s, out)
	if !s.Renew && out.Reason != lb.Assigned {
		out.Origins = s.stillRemembers(out.Origins)
	}
	return out
}

// holding says what the subject holds, and from where.
func (a *assigner) holding(s *subject) Assignment {
	out := Assignment{Service: s.Key}
	for _, addr := range s.held {
		if !addr.IsValid() {
			continue
		}
		pool, origin := "", s.AssignedFrom[addr]
		if p := a.index.find(addr); p != nil {
			pool = p.Name
		}
		if origin == "" {
			origin = pool
		}
		out.Addresses, out.Pools = append(out.Addresses, addr), append(out.Pools, pool)
		if origin != "" {
			out.Origins = append(out.Origins, Origin{addr, origin})
		}
	}
	return out
}

// stillRemembers adds what the Service had before a restore in families that it lacks: pools may be
// restored after it.
func (s *subject) stillRemembers(origins []Origin) []Origin {
	for _, addr := range slices.SortedFunc(maps.Keys(s.AssignedFrom), netip.Addr.Compare) {
		f := s.family(addr)
		if f >= 0 && !s.held[f].IsValid() && !slices.Contains(s.Addresses, addr) {
			origins = append(origins, Origin{addr, s.AssignedFrom[addr]})
		}
	}
	return origins
}

func (a *assigner) verdict(s *subject, has Assignment) (lb.Reason, string) {
	if reason, message, never := hopeless(s.Service); never {
		return reason, message
	}
	_, l := a.find(s)
	holds := describe(has)
	switch {
	case l != nil && l.kept:
		return lb.AddressKept, fmt.Sprintf("keeps %s until another can be had: %s", holds, l.message)
	case l != nil && len(has.Addresses) == 0:
		return l.reason, l.message
	case l != nil && s.FamilyPolicy == lb.PreferDualStack && isShortage(l.reason):
		return lb.PartlyAssigned, fmt.Sprintf("has %s; %s", holds, l.message)
	case l != nil:
		return l.reason, fmt.Sprintf("keeps %s; %s", holds, l.message)
	}
	for _, addr := range has.Addresses {
		if why := a.unfit(s, addr); why != "" {
			return lb.AddressKept, fmt.Sprintf("keeps %s, although %s: to move, set holdfast.dev/renew", holds, why)
		}
	}
	return lb.Assigned, "has " + holds
}

// unfit says how the pool of an address that is kept is not of the kind that the Service wants now.
func (a *assigner) unfit(s *subject, addr netip.Addr) string {
	pool := a.index.find(addr)
	if pool == nil || s.Renew || slices.Contains(s.RequestedAddresses, addr) {
		return ""
	}
	if why := pool.mismatch(s); why != "" {
		return fmt.Sprintf("pool %q %s", pool.Name, why)
	}
	return ""
}

// isShortage tells a family that could not be had from a request that failed.
func isShortage(r lb.Reason) bool {
	switch r {
	case lb.NoPool, lb.NoFamily, lb.PoolExhausted, lb.QuotaExceeded, lb.Quarantined, lb.PortClash, lb.NotShareable, lb.SharingLimit:
		return true
	}
	return false
}

func describe(has Assignment) string {
	words := make([]string, len(has.Addresses))
	for i, addr := range has.Addresses {
		if has.Pools[i] == "" {
			words[i] = addr.String() + ", which is in no pool any more"
			continue
		}
		words[i] = addr.String() + " from pool " + strconv.Quote(has.Pools[i])
	}
	return strings.Join(words, " and ")
}
