package lb

import (
	"net/netip"
	"slices"
)

// Group is a sharing group: the Services that addresses connect, usually a single one. They are planned together,
// because Services that share an address have one owner. A Group never changes.
type Group struct {
	// Services that stay, and Leaving, which are served until they lose their addresses; each ordered by key.
	Services, Leaving []*Service
	// Addresses of all of them, ordered.
	Addresses []netip.Addr
	// SelectsNodes reports whether a Service that stays has NodeSelectors.
	SelectsNodes bool
	// Proxied reports whether proxies serve a Service, or are to serve it.
	Proxied bool
	// holders has the result of Holders for each address; nil if the only Service has all of them.
	holders [][]int
}

// Has reports whether a Service of the group has an address.
func (g *Group) Has(a netip.Addr) bool {
	return g.Index(a) >= 0
}

// Index returns the index of an address; -1 for none.
func (g *Group) Index(a netip.Addr) int {
	i, found := slices.BinarySearchFunc(g.Addresses, a, netip.Addr.Compare)
	if !found {
		return -1
	}
	return i
}

// onlyHolder is the result of Holders for a single Service.
var onlyHolder = []int{0}

// Holders returns the indexes of the Services that stay and have an address of the group. It must not be changed.
func (g *Group) Holders(a netip.Addr) []int {
	if g.holders == nil {
		return onlyHolder
	}
	return g.holders[g.Index(a)]
}

// findHolders finds the holders of all addresses.
func (g *Group) findHolders() {
	isSingle := len(g.Services) == 1 && len(g.Leaving) == 0
	if isSingle {
		return
	}

	g.holders = make([][]int, len(g.Addresses))
	for i, s := range g.Services {
		for _, a := range s.Addresses {
			known := &g.holders[g.Index(a)]
			n := len(*known)
			isDuplicate := n > 0 && (*known)[n-1] == i
			if !isDuplicate {
				*known = append(*known, i)
			}
		}
	}
}

// Groups are the sharing groups of some Services. The zero value has none.
type Groups struct {
	// All groups are ordered by their first Service; those without a Service that stays come last.
	All []*Group
	// services and leaving are what the groups were formed of.
	services, leaving []*Service
	// memberAt has the index of a member for each address. firstOf has the index of the first member that each is
	// connected with, and groupOf the index of its group.
	memberAt         map[netip.Addr]int
	firstOf, groupOf []int
}

// At returns the group of an address; nil for none.
func (g *Groups) At(a netip.Addr) *Group {
	i, exists := g.memberAt[a]
	if !exists {
		return nil
	}
	return g.All[g.groupOf[i]]
}

// Agreeing returns a function that reports whether a predicate holds for all Services that stay in the group of one
// Service. It takes the addresses of that Service. Of each group that it is asked for it reads the Services once.
func (g *Groups) Agreeing(predicate func(*Service) bool) func(addresses []netip.Addr) bool {
	differs := func(s *Service) bool { return !predicate(s) }
	known := map[*Group]bool{}
	return func(addresses []netip.Addr) bool {
		if len(addresses) == 0 {
			return true
		}

		group := g.At(addresses[0])
		agrees, isKnown := known[group]
		if !isKnown {
			agrees = group == nil || !slices.ContainsFunc(group.Services, differs)
			known[group] = agrees
		}
		return agrees
	}
}

// Form forms the groups of the Services that stay and of those that leave, both ordered by key. A group with the same
// members as before stays the same pointer. It reports whether any group differs.
func (g *Groups) Form(services []*Service, leaving []Leaving) (differs bool) {
	var members []*Service
	for i := range leaving {
		if leaving[i].Served != nil {
			members = append(members, leaving[i].Served)
		}
	}
	if Same(services, g.services) && slices.Equal(members, g.leaving) {
		return false
	}

	before := g.All
	isConnected := haveSameAddresses(services, g.services) && haveSameAddresses(members, g.leaving)
	g.services, g.leaving = services, members
	f := former{
		staying: len(services),
		members: slices.Concat(services, members),
		groups:  before,
	}
	if !isConnected {
		g.connect(f.members)
	}
	g.build(&f)
	return !slices.Equal(before, g.All)
}

// haveSameAddresses reports whether the Services at each index have the same addresses, so that the same ones are
// connected. Most changes are of endpoints only.
func haveSameAddresses(a, b []*Service) bool {
	return slices.EqualFunc(a, b, func(x, y *Service) bool {
		return x == y || slices.Equal(x.Addresses, y.Addresses)
	})
}

// connect finds the first member that each is connected with.
func (g *Groups) connect(members []*Service) {
	g.firstOf = make([]int, len(members))
	if g.memberAt == nil {
		g.memberAt = make(map[netip.Addr]int, len(members))
	}

	clear(g.memberAt)

	for i, s := range members {
		g.firstOf[i] = i
		for _, a := range s.Addresses {
			other, isShared := g.memberAt[a]
			if !isShared {
				g.memberAt[a] = i
				continue
			}
			x, y := g.findFirst(i), g.findFirst(other)
			g.firstOf[max(x, y)] = min(x, y)
		}
	}

	for i := range members {
		g.firstOf[i] = g.findFirst(i)
	}
}

// findFirst returns the first member known to be connected with one.
func (g *Groups) findFirst(i int) int {
	for g.firstOf[i] != i {
		g.firstOf[i] = g.firstOf[g.firstOf[i]]
		i = g.firstOf[i]
	}
	return i
}

// former finds the groups of the last call that are as before.
type former struct {
	// members are all Services: first those that stay.
	members []*Service
	staying int
	// groups are the former groups that were not compared yet.
	groups []*Group
}

// build makes the groups of connected members, and writes their indexes to groupOf.
func (g *Groups) build(f *former) {
	others := map[int][]int{}
	for i, first := range g.firstOf {
		if first != i {
			others[first] = append(others[first], i)
		}
	}

	g.groupOf = make([]int, len(g.firstOf))
	g.All = make([]*Group, 0, len(f.groups)+1)
	for i, first := range g.firstOf {
		if first != i {
			g.groupOf[i] = g.groupOf[first]
			continue
		}
		g.groupOf[i] = len(g.All)
		g.All = append(g.All, f.group(i, others[i]))
	}
}

// group returns the group of a member, which is its first one, and others: a former one if it is the same.
func (f *former) group(first int, others []int) *Group {
	known := f.next(first)
	if known != nil && f.isOf(known, first, others) {
		return known
	}

	out := &Group{}
	f.add(out, first)

	for _, i := range others {
		f.add(out, i)
	}

	slices.SortFunc(out.Addresses, netip.Addr.Compare)
	out.Addresses = slices.Clip(slices.Compact(out.Addresses))
	out.findHolders()
	return out
}

// next returns the former group with the same first member; nil for none. Calls must have ascending indexes.
func (f *former) next(first int) *Group {
	s, stays := f.members[first], first < f.staying
	for len(f.groups) > 0 {
		group := f.groups[0]
		it, itStays := group.first()
		switch {
		case it == s && itStays == stays:
			f.groups = f.groups[1:]
			return group
		case itStays && !stays, itStays == stays && it.Key.Compare(s.Key) <= 0:
			f.groups = f.groups[1:]
		default:
			return nil
		}
	}

	return nil
}

// first returns the first member of a group, and whether it stays.
func (g *Group) first() (s *Service, stays bool) {
	if len(g.Services) > 0 {
		return g.Services[0], true
	}
	return g.Leaving[0], false
}

// isOf reports whether a group has these members and no others.
func (f *former) isOf(g *Group, first int, others []int) bool {
	if len(g.Services)+len(g.Leaving) != 1+len(others) {
		return false
	}

	has := func(place, i int) bool {
		if place < len(g.Services) {
			return i < f.staying && g.Services[place] == f.members[i]
		}
		return i >= f.staying && g.Leaving[place-len(g.Services)] == f.members[i]
	}
	for place, i := range others {
		if !has(place+1, i) {
			return false
		}
	}

	return has(0, first)
}

// add adds a member to a group.
func (f *former) add(g *Group, i int) {
	s := f.members[i]
	g.Addresses = append(g.Addresses, s.Addresses...)
	if i >= f.staying {
		g.Leaving = append(g.Leaving, s)
		g.Proxied = g.Proxied || s.Proxied
		return
	}

	g.Services = append(g.Services, s)
	g.SelectsNodes = g.SelectsNodes || len(s.NodeSelectors) > 0
	g.Proxied = g.Proxied || s.Proxied || s.Proxy != nil
}
