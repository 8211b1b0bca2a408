package egress

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// maxWays is the number of links of a family by which pods can leave although the default route leads elsewhere.
const maxWays = 3

// wayMask are the bits of a packet's mark with the number of its way, and 0 for the main table. The programs that
// portMark names use none of them. A packet has them from the chain steer to the chain forward.
const (
	wayMask  = 0x0c
	wayShift = 2
)

// wayMark returns the mark of a way.
func wayMark(number int) uint32 { return uint32(number) << wayShift }

// waySlots are the links of the ways of a family, by index; 0 where a number is free. The number of a way is one more
// than its place.
type waySlots [maxWays]int

// number returns the number of the way by a link; 0 if there is none.
func (w *waySlots) number(link int) int {
	if link == 0 {
		return 0
	}
	return slices.Index(w[:], link) + 1
}

// chooseWays numbers the ways that sources need. A way keeps its number: packets on their way have its mark.
func (m *model) chooseWays(former map[lb.Family]waySlots, known map[netip.Addr]right) {
	m.setExits(known)
	m.ways = make(map[lb.Family]waySlots)
	for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
		m.ways[f] = m.choose(f, former[f])
	}

	m.closeWays(func(s source) string {
		if m.wayOf(s).number > 0 {
			return ""
		}
		return fmt.Sprintf("pods leave by %d links already over which the default route does not lead", maxWays)
	})
}

// choose returns the ways of a family that sources need.
func (m *model) choose(f lb.Family, former waySlots) (out waySlots) {
	needed := make(map[int]bool)
	for pod, s := range m.sources {
		if s.way != 0 && lb.FamilyOf(pod) == f {
			needed[s.way] = true
		}
	}

	for i, index := range former {
		if needed[index] {
			out[i] = index
		}
	}

	for _, w := range m.desired.Ways {
		index := m.uplinks[w.Link]
		isNew := needed[index] && out.number(index) == 0
		free := slices.Index(out[:], 0)
		if isNew && w.Family == f && free >= 0 {
			out[free] = index
		}
	}
	return out
}

// closeWays closes the sources whose ways have a fault. Their older connections go on.
func (m *model) closeWays(fault func(source) string) {
	for pod, s := range m.sources {
		if s.way == 0 {
			continue
		}
		why := fault(s)
		if why != "" && s.hasRight() {
			m.faults[pod] = why
			s.uplink = 0
			m.sources[pod] = s
		}
	}
}

// setExits sets by which links the packets of sources leave, and which of these need a way. A source without a link,
// because no node announces its address at the moment, keeps its last link: its older connections go on.
func (m *model) setExits(known map[netip.Addr]right) {
	for pod, s := range m.sources {
		if s.port == (port{}) {
			continue
		}

		s.exit = m.uplinks[s.Link]
		if s.Link == "" {
			s.exit = known[pod].exit
		}
		isWay := func(w lb.EgressWay) bool {
			return w.Family == lb.FamilyOf(pod) && m.uplinks[w.Link] == s.exit
		}
		hasWay := s.exit != 0 && slices.ContainsFunc(m.desired.Ways, isWay)
		leavesAsNode := s.Closed == "" && s.First == 0
		if hasWay && !leavesAsNode {
			s.way = s.exit
		}
		m.sources[pod] = s
	}
}

// wayOf returns the way of a source; its number is 0 if it has none.
func (m *model) wayOf(s source) wayKey {
	f := lb.FamilyOf(s.Pod)
	chosen := m.ways[f]
	return wayKey{f, chosen.number(s.way)}
}

// remote are destinations that no specific route covers, except for routes that refuse: RFC 1112 section 4, RFC 9637.
var remote = map[lb.Family]netip.Addr{
	lb.IPv4: netip.MustParseAddr("240.0.0.1"),
	lb.IPv6: netip.MustParseAddr("3fff:fff:ffff::1"),
}

// misled returns why the packets of a source do not take its way: a routing rule of another program comes first.
func (m *model) misled(s source) string {
	exit := m.exitTo(s, remote[lb.FamilyOf(s.Pod)])
	if exit == 0 || exit == s.way {
		return ""
	}
	return fmt.Sprintf("a routing rule of another program leads over another link than %s", s.Link)
}

// wayElements adds the pods of a family that take a way.
func (m *model) wayElements(f *family, list *nft.Elements) {
	links := make(map[string]bool)
	for pod, s := range m.sources {
		number := m.wayOf(s).number
		if f.Has(pod) && number > 0 {
			set := waySets()[number-1]
			incoming := link(s.port.link())
			list.Put(set, incoming+string(pod.AsSlice()), "")
			links[incoming] = true
		}
	}

	for incoming := range links {
		list.Put(steeredSet, incoming, "")
	}
}

// routes returns the rules and routes that the ways need.
func (m *model) routes() (out routes) {
	for _, w := range m.desired.Ways {
		index := m.uplinks[w.Link]
		chosen := m.ways[w.Family]
		number := chosen.number(index)
		if number > 0 {
			out.add(w, number, index)
		}
	}
	return out
}
