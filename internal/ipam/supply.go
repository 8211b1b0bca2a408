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

// supply is a pool, and how far it was searched for free addresses.
type supply struct {
	*lb.Pool
	// index is the pool's index in State.Pools.
	index int
	// nextFree is the lowest address of each range that may be free; the zero Addr if there is none.
	nextFree []netip.Addr
	// released are the releases of its addresses: those without reuseDelay first, then earliest first.
	released map[lb.Family][]releaseRecord
	// passed counts the releases that are known to be taken.
	passed map[lb.Family]int
	// counts are its counts so far. Available counts down from zero until the end.
	counts Usage
}

// newSupplies returns the pools in the order in which they are tried: by priority, then pools restricted to some
// Services before pools open to all, then by name. For a Service only the pools that may serve it are tried, so a
// restricted pool comes first for the Services that it is meant for.
func newSupplies(pools []lb.Pool) []*supply {
	supplies := make([]*supply, len(pools))
	for i := range pools {
		p := &pools[i]
		s := &supply{
			Pool:     p,
			index:    i,
			released: map[lb.Family][]releaseRecord{},
			passed:   map[lb.Family]int{},
			counts:   Usage{Pool: p.Name},
		}
		for _, r := range p.Ranges {
			s.nextFree = append(s.nextFree, r.From)
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

// priority returns the priority of a pool; 0 sorts last.
func priority(p *lb.Pool) int {
	if p.Allocation == nil || p.Allocation.Priority == 0 {
		return math.MaxInt
	}
	return p.Allocation.Priority
}

// openness returns 0 for a pool that is restricted to some Services, and 1 for others.
func openness(p *lb.Pool) int {
	al := p.Allocation
	isRestricted := al != nil && (al.ByNamespace || len(al.ServiceSelectors) > 0)
	if isRestricted {
		return 0
	}

	return 1
}

// quoted returns the name of the pool as the beginning of a message.
func (s *supply) quoted() string {
	return fmt.Sprintf("pool %q ", s.Name)
}

// kindMismatch returns the reason why the pool is not of the kind that the subject requests, or "".
func (s *supply) kindMismatch(subject *subject) string {
	switch {
	case s.Internal && !subject.Internal:
		return "is for internal Services: holdfast.dev/internal asks for that"
	case !s.Internal && subject.Internal:
		return "is not for internal Services"
	case subject.Class != "" && !slices.Contains(s.Classes, subject.Class):
		return "does not serve class " + subject.Class
	}

	for _, w := range subject.PoolWishes {
		if !slices.Contains(w.Pools, s.Name) {
			return "is not of " + w.Text
		}
	}

	return ""
}

// poolRefusal returns the reason why the pool may not serve the subject, or "". A pool that the subject requests serves
// it even without autoAssign and without the class.
func (a *assigner) poolRefusal(p *supply, s *subject, isRequested bool) string {
	if p.Deleting {
		return "is being deleted"
	}

	mismatch := p.kindMismatch(s)
	if mismatch != "" {
		return mismatch
	}

	if !isRequested && !p.AutoAssign {
		return "has autoAssign off"
	}

	namesNoClass := len(p.Classes) > 0 && s.Class == ""
	if !isRequested && namesNoClass {
		return "serves only those that name its class"
	}

	al := p.Allocation
	switch {
	case al == nil:
		return ""
	case al.ByNamespace && !allowsNamespace(al, s.Key.Namespace, a.state.Namespaces):
		return "does not serve the Service's namespace"
	case len(al.ServiceSelectors) > 0 && !lb.MatchesAny(al.ServiceSelectors, s.Labels):
		return "does not serve the Service's labels"
	}

	return ""
}

// allowsNamespace reports whether a pool serves a namespace. namespaces has the labels of each namespace.
func allowsNamespace(al *lb.Allocation, name string, namespaces map[string]map[string]string) bool {
	if slices.Contains(al.Namespaces, name) {
		return true
	}
	// The operator NotIn would match a namespace whose labels are not known yet.
	labels, isKnown := namespaces[name]
	return isKnown && lb.MatchesAny(al.NamespaceSelectors, labels)
}

// checkNamespace returns a refusal if the subject's namespace is not known yet while pools select namespaces by their
// labels. A Service may be seen before its namespace, and would permanently keep the address of a pool that is not
// meant for it.
func (a *assigner) checkNamespace(s *subject) *refusal {
	_, isKnown := a.state.Namespaces[s.Key.Namespace]
	if isKnown {
		return nil
	}

	selectsNamespaces := func(p *supply) bool {
		return p.Allocation != nil && len(p.Allocation.NamespaceSelectors) > 0
	}
	if !slices.ContainsFunc(a.supplies, selectsNamespaces) {
		return nil
	}

	return refuse(lb.NoPool, "namespace %q is not known yet, and pools select namespaces by their labels",
		s.Key.Namespace)
}

// lowestFree returns the lowest free address of the family in the first range that has one. It leaves out released
// addresses and addresses of foreign machines, which come last.
//
// Within one decision addresses are only taken, so an address that was passed over is not looked at again. All calls
// together cost one step for each taken address, however large the ranges are.
func (s *supply) lowestFree(
	family lb.Family,
	taken map[netip.Addr]addressHolders,
	released map[netip.Addr]releaseRecord,
	foreign []netip.Addr,
) (netip.Addr, bool) {
	for i, r := range s.Ranges {
		if lb.FamilyOf(r.From) != family {
			continue
		}

		for addr := s.nextFree[i]; addr.IsValid() && !r.To.Less(addr); addr = s.nextFree[i] {
			part, isWithheld := s.Withheld.Part(addr)
			if isWithheld {
				s.nextFree[i] = part.To.Next()
				continue
			}

			_, isTaken := taken[addr]
			_, isReleased := released[addr]
			_, isForeign := slices.BinarySearchFunc(foreign, addr, netip.Addr.Compare)
			isUnused := !isTaken && !isReleased && !isForeign
			if isUnused && !s.isBuggy(addr) {
				return addr, true
			}

			s.nextFree[i] = addr.Next()
		}
	}

	return netip.Addr{}, false
}

// avoids reports whether the pool does not assign the address: it belongs to the cluster, or old routers treat it as a
// network or broadcast address.
func (s *supply) avoids(addr netip.Addr) bool {
	return s.Withheld.Find(addr) != "" || s.isBuggy(addr)
}

// isBuggy reports whether the pool avoids the address because it ends in .0 or .255.
func (s *supply) isBuggy(addr netip.Addr) bool {
	if !s.AvoidBuggyIPs || !addr.Is4() {
		return false
	}
	last := addr.As4()[3]
	return last == 0 || last == 255
}

// maxCounted bounds counts: some readers of JSON have numbers of type float64, which can represent 2^62 but not 2^63-1.
const maxCounted = 1 << 62

// size returns the number of addresses of the family that the pool may assign.
func (s *supply) size(family lb.Family) int64 {
	all := int64(0)
	for _, r := range lb.Subtract(s.Ranges, s.Withheld.Ranges()) {
		if lb.FamilyOf(r.From) != family {
			continue
		}

		all = min(all+countAddresses(r), maxCounted)
		if s.AvoidBuggyIPs && r.From.Is4() {
			all -= countBuggy(r)
		}
	}

	return all
}

// countAddresses returns the number of addresses of the range, up to maxCounted-1.
func countAddresses(r lb.Range) int64 {
	fromHigh, fromLow := halves(r.From)
	toHigh, toLow := halves(r.To)
	low, borrow := bits.Sub64(toLow, fromLow, 0)
	high, _ := bits.Sub64(toHigh, fromHigh, borrow)
	if high > 0 || low >= maxCounted {
		return maxCounted - 1
	}

	return int64(low) + 1
}

// halves returns an address as two numbers. An IPv4 address is mapped to IPv6.
func halves(a netip.Addr) (high, low uint64) {
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// countBuggy returns the number of IPv4 addresses of the range that end in .0 or .255.
func countBuggy(r lb.Range) int64 {
	// countBelow counts these among the first n addresses.
	countBelow := func(n int64) int64 {
		endIn0 := (n + 255) / 256
		endIn255 := n / 256
		return endIn0 + endIn255
	}
	number := func(a netip.Addr) int64 {
		b := a.As4()
		return int64(binary.BigEndian.Uint32(b[:]))
	}
	return countBelow(number(r.To)+1) - countBelow(number(r.From))
}
