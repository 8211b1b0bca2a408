package ipam

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// supply is a pool, with how far each of its ranges is known to be taken.
type supply struct {
	*lb.Pool
	// place is the pool's index in State.Pools.
	place int
	// next is the lowest address of each range that may be free; the zero Addr if there is none.
	next []netip.Addr
	// old are the releases of its addresses: those that are over first, then earliest first.
	old map[lb.Family][]release
	// tried is how many of these are known to be taken.
	tried map[lb.Family]int
	// counts are what it has; until the end Available counts down from none.
	counts Usage
}

// newSupplies returns the pools in the order in which they are tried: by
// priority, then pools restricted to some Services before those open to all,
// then by name. Only pools that may serve a Service are tried for it, so a
// restricted pool comes first for the Services that it is meant for.
func newSupplies(pools []lb.Pool) []*supply {
	supplies := make([]*supply, len(pools))
	for i := range pools {
		s := &supply{
			Pool:   &pools[i],
			place:  i,
			next:   make([]netip.Addr, len(pools[i].Ranges)),
			old:    map[lb.Family][]release{},
			tried:  map[lb.Family]int{},
			counts: Usage{Pool: pools[i].Name},
		}
		for j, r := range pools[i].Ranges {
			s.next[j] = r.From
		}
		supplies[i] = s
	}
	slices.SortFunc(supplies, func(a, b *supply) int {
		return cmp.Or(
			cmp.Compare(priority(a.Pool), priority(b.Pool)),
			cmp.Compare(openness(a.Pool), openness(b.Pool)),
			cmp.Compare(a.Name, b.Name),
		)
	})
	return supplies
}

func priority(p *lb.Pool) int {
	if p.Allocation == nil || p.Allocation.Priority == 0 {
		return math.MaxInt
	}
	return p.Allocation.Priority
}

func openness(p *lb.Pool) int {
	if p.Allocation != nil && (p.Allocation.ByNamespace || len(p.Allocation.ServiceSelectors) > 0) {
		return 0
	}
	return 1
}

func (s *supply) quoted() string { return fmt.Sprintf("pool %q ", s.Name) }

// mismatch returns why the pool is not of the kind that the subject requests, "" if it is.
func (s *supply) mismatch(by *subject) string {
	switch {
	case s.Internal && !by.Internal:
		return "is for internal Services: holdfast.dev/internal asks for that"
	case !s.Internal && by.Internal:
		return "is not for internal Services"
	case by.Class != "" && !slices.Contains(s.Classes, by.Class):
		return "does not serve class " + by.Class
	}
	for _, w := range by.PoolWishes {
		if !slices.Contains(w.Pools, s.Name) {
			return "is not of " + w.Text
		}
	}
	return ""
}

// refuses returns why the pool may not serve the subject, "" if it may. A pool
// that the subject requests serves it even without autoAssign and without the class.
func (a *assigner) refuses(p *supply, s *subject, asked bool) string {
	if p.Deleting {
		return "is being deleted"
	}
	if why := p.mismatch(s); why != "" {
		return why
	}
	switch al := p.Allocation; {
	case !p.AutoAssign && !asked:
		return "has autoAssign off"
	case len(p.Classes) > 0 && s.Class == "" && !asked:
		return "serves only those that name its class"
	case al == nil:
		return ""
	case al.ByNamespace && !allowsNamespace(al, s.Key.Namespace, a.state.Namespaces):
		return "does not serve the Service's namespace"
	case len(al.ServiceSelectors) > 0 && !lb.MatchesAny(al.ServiceSelectors, s.Labels):
		return "does not serve the Service's labels"
	}
	return ""
}

func allowsNamespace(al *lb.Allocation, name string, namespaces map[string]map[string]string) bool {
	if slices.Contains(al.Namespaces, name) {
		return true
	}
	// A namespace that is not known yet has no labels, and NotIn would match that.
	labels, known := namespaces[name]
	return known && lb.MatchesAny(al.NamespaceSelectors, labels)
}

// unseen returns a refusal if the subject's namespace is not known yet while pools select namespaces by their labels. A
// Service may be seen before its namespace, and would keep for good the address of a pool that is not meant for it.
func (a *assigner) unseen(s *subject) *refusal {
	selective := func(p *supply) bool { return p.Allocation != nil && len(p.Allocation.NamespaceSelectors) > 0 }
	if _, known := a.state.Namespaces[s.Key.Namespace]; known || !slices.ContainsFunc(a.supplies, selective) {
		return nil
	}
	return refuse(
		lb.NoPool,
		"namespace %q is not known yet, and pools select namespaces by their labels",
		s.Key.Namespace,
	)
}

// free returns the lowest free address of the family in the first range that has
// one. Within one decision addresses are only ever taken, so an address that was passed
// over is never looked at again: all calls together cost one step for each taken
// address, however large the ranges are. Released addresses and those of foreign machines are left for last.
func (s *supply) free(
	family lb.Family,
	taken map[netip.Addr]holders,
	released map[netip.Addr]release,
	foreign []netip.Addr,
) (netip.Addr, bool) {
	for i, r := range s.Ranges {
		if lb.FamilyOf(r.From) != family {
			continue
		}
		for addr := s.next[i]; addr.IsValid() && !r.To.Less(addr); addr = s.next[i] {
			_, held := taken[addr]
			_, late := released[addr]
			part, withheld := s.Withheld.Part(addr)
			if withheld {
				s.next[i] = part.To.Next()
				continue
			}
			if _, claimed := slices.BinarySearchFunc(foreign, addr, netip.Addr.Compare); !held &&
				!late &&
				!claimed &&
				!s.isBuggy(addr) {
				return addr, true
			}
			s.next[i] = addr.Next()
		}
	}
	return netip.Addr{}, false
}

func (s *supply) regain(addr netip.Addr) {
	for i, r := range s.Ranges {
		if r.Contains(addr) && (!s.next[i].IsValid() || addr.Less(s.next[i])) {
			s.next[i] = addr
		}
	}
}

// avoids reports whether the pool leaves out the address: it belongs to the cluster, or old routers take it for a
// network or broadcast address.
func (s *supply) avoids(addr netip.Addr) bool { return s.Withheld.Find(addr) != "" || s.isBuggy(addr) }

func (s *supply) isBuggy(addr netip.Addr) bool {
	if !s.AvoidBuggyIPs || !addr.Is4() {
		return false
	}
	last := addr.As4()[3]
	return last == 0 || last == 255
}

// maxCounted bounds counts: JSON numbers of some readers are float64, which represents 2^62 exactly and 2^63-1 not.
const maxCounted = 1 << 62

// size counts all addresses of the family that the pool may assign.
func (s *supply) size(family lb.Family) int64 {
	all := int64(0)
	for _, r := range lb.Subtract(s.Ranges, s.Withheld.Ranges()) {
		if lb.FamilyOf(r.From) == family {
			all = min(all+count(r), maxCounted)
			if s.AvoidBuggyIPs && r.From.Is4() {
				all -= buggy(r)
			}
		}
	}
	return all
}

// count counts the addresses of the range, up to maxCounted-1.
func count(r lb.Range) int64 {
	from, to := r.From.As16(), r.To.As16()
	low, borrow := bits.Sub64(binary.BigEndian.Uint64(to[8:]), binary.BigEndian.Uint64(from[8:]), 0)
	high, _ := bits.Sub64(binary.BigEndian.Uint64(to[:8]), binary.BigEndian.Uint64(from[:8]), borrow)
	if high > 0 || low >= maxCounted {
		return maxCounted - 1
	}
	return int64(low) + 1
}

// buggy counts the IPv4 addresses of the range that end in .0 or .255.
func buggy(r lb.Range) int64 {
	below := func(a netip.Addr, more int64) int64 {
		b := a.As4()
		n := int64(binary.BigEndian.Uint32(b[:])) + more
		return (n+255)/256 + n/256
	}
	return below(r.To, 1) - below(r.From, 0)
}
