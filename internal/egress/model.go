package egress

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// view is what the kernel says about this node's links and routes.
type view struct {
	// ports are the ports that lead to pods, by the pod's address. An address that several ports claim has all of them.
	ports map[netip.Addr][]port
	// veths are the veths of this node, by index.
	veths map[int]port
	// routed are the prefixes that the main routing table sends through a node of the cluster.
	routed []netip.Prefix
}

// port is the veth of this node that leads to a pod.
type port struct {
	name  string
	index int
	// bridge is the index of the bridge whose port the veth is; 0 if it is none.
	bridge int
}

// link returns the index of the link by which IP receives the port's packets.
func (p port) link() int {
	if p.bridge != 0 {
		return p.bridge
	}
	return p.index
}

// source is an EgressSource with the link of its pod.
type source struct {
	lb.EgressSource
	// port is the zero port if the pod's link is unknown.
	port port
	// uplink is the index of the link that the packets leave by; 0 while the pod has no right.
	uplink int
	// exit is the index of the link that the packets of older connections leave by; 0 if there is none. It outlasts the
	// right. And way is the same if they need a way.
	exit, way int
}

// hasRight reports whether the pod may open connections from the address.
func (s source) hasRight() bool { return s.uplink != 0 }

// model is the desired content of all tables.
type model struct {
	desired *Desired
	// uplinks are the indexes of the links that lead out of the cluster, by name.
	uplinks map[string]int
	routed  []netip.Prefix
	// sources are the sources by the pod's address.
	sources map[netip.Addr]source
	// ways are the links over which pods leave although the default route leads elsewhere.
	ways map[lb.Family]waySlots
	// faults say why a source that should be open is not.
	faults map[netip.Addr]string
}

// newModel returns the model of a desired state. The function portOf returns the port of a source, or why it is
// unknown.
func newModel(
	d *Desired,
	uplinks map[string]int,
	routed []netip.Prefix,
	portOf func(lb.EgressSource) (port, string),
) *model {
	m := &model{
		desired: d,
		uplinks: uplinks,
		routed:  routed,
		sources: make(map[netip.Addr]source),
		faults:  make(map[netip.Addr]string),
	}

	for _, wanted := range d.Sources {
		_, isDouble := m.sources[wanted.Pod]
		isClosedFamily := !wanted.Address.IsValid() && wanted.Closed != ""
		isOtherFamily := wanted.Pod.BitLen() != wanted.Address.BitLen()
		isWrong := isOtherFamily && !isClosedFamily
		if isDouble || isWrong {
			continue
		}

		s := source{EgressSource: wanted}
		fault := ""
		s.port, fault = portOf(wanted)
		index, isLink := uplinks[wanted.Link]
		if fault == "" && !isLink {
			fault = fmt.Sprintf("this node has no link %q", wanted.Link)
		}

		wantsRight := wanted.Closed == "" && wanted.First != 0
		switch {
		case wantsRight && fault == "":
			s.uplink = index
		case wantsRight:
			m.faults[wanted.Pod] = fault
		}
		m.sources[wanted.Pod] = s
	}

	return m
}

// portOf returns the port that leads to a pod, or why it is unknown.
func (v *view) portOf(pod netip.Addr) (port, string) {
	list := v.ports[pod]
	switch len(list) {
	case 0:
		return port{}, "no veth of this node leads to the pod"
	case 1:
		return list[0], ""
	}

	return port{}, fmt.Sprintf("links %s and %s both claim the pod's address", list[0].name, list[1].name)
}

// needs reports whether a family has anything to do.
func (m *model) needs(f *family) bool {
	for pod := range m.sources {
		if f.Has(pod) {
			return true
		}
	}

	isOfFamily := func(p lb.EgressPass) bool { return f.Has(p.Address) }
	return slices.ContainsFunc(m.desired.Passes, isOfFamily)
}

// elements returns the elements of a family's table.
func (m *model) elements(f *family) (list nft.Elements) {
	for _, index := range m.uplinks {
		list.Put(uplinksSet, link(index), "")
	}

	protocols := []byte{
		unix.IPPROTO_TCP,
		unix.IPPROTO_UDP,
		f.ICMP,
	}
	for _, protocol := range protocols {
		list.Put(protocolsSet, string([]byte{protocol}), "")
	}

	for mac := range m.desired.Speakers {
		list.Put(speakersSet, string(mac[:]), "")
	}

	addresses := make(map[netip.Addr]bool)
	bridges := make(map[int]bool)
	for _, s := range m.sources {
		if !f.Has(s.Pod) {
			continue
		}

		s.elements(&list)
		bridges[s.port.bridge] = true
		if s.Address.IsValid() {
			addresses[s.Address] = true
		}
	}

	m.wayElements(f, &list)
	m.passes(f, &list, addresses)
	delete(bridges, 0)
	for index := range bridges {
		list.Put(bridgesSet, link(index), "")
	}

	for a := range addresses {
		list.Put(addressesSet, string(a.AsSlice()), "")
	}

	return append(list, m.intervals(f)...)
}

// elements adds the elements of a source.
func (s source) elements(list *nft.Elements) {
	address := string(s.Pod.AsSlice())
	if s.Closed != "" || s.First != 0 {
		list.Put(sourcesSet, address, "")
	}

	if s.port == (port{}) {
		return
	}

	key := link(s.port.link()) + address
	list.Put(podsSet, key, "")
	if s.exit != 0 {
		list.Put(exitsSet, key+link(s.exit), "")
	}
	if !s.hasRight() {
		return
	}

	list.Put(rightsSet, key+link(s.uplink), "")
	list.Put(translationsMap, key, string(s.Address.AsSlice()))
	list.Put(firstsMap, key, nft.PortValue(s.First))
	list.Put(lastsMap, key, nft.PortValue(s.First+lb.SlicePorts-1))
}

// passes adds the elements of the slices of other nodes, and their addresses. A slice of this node is never passed on.
func (m *model) passes(f *family, list *nft.Elements, addresses map[netip.Addr]bool) {
	type slice struct {
		address netip.Addr
		first   uint16
	}
	known := make(map[slice]bool)
	for _, s := range m.sources {
		known[slice{s.Address, s.First}] = true
	}

	for _, p := range m.desired.Passes {
		if !f.Has(p.Address) || !f.Has(p.Via) {
			continue
		}

		addresses[p.Address] = true
		passed := slice{p.Address, p.First}
		index, isLink := m.uplinks[p.Link]
		if known[passed] || !isLink {
			continue
		}
		known[passed] = true

		const padding = "\x00\x00"
		via := p.Via.WithZone("")
		key := string(p.Address.AsSlice()) + nft.PortValue(p.First) + padding
		list.Put(passesMap, key, string(via.AsSlice()))
		list.Put(linksMap, key, link(index))
	}
}

// inside returns the prefixes of a family that are not outside of the cluster.
func (m *model) inside(f *family) []netip.Prefix {
	var list []netip.Prefix
	for _, s := range f.inside {
		list = append(list, netip.MustParsePrefix(s))
	}

	single := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
	for _, s := range m.sources {
		list = append(list, single(s.Address))
	}

	for _, p := range m.desired.Passes {
		list = append(list, single(p.Address))
	}

	for _, a := range m.desired.Nodes {
		list = append(list, single(a.WithZone("")))
	}

	list = slices.Concat(list, m.desired.Inside, m.routed)
	isOther := func(p netip.Prefix) bool { return !p.IsValid() || !f.Has(p.Addr()) }
	return slices.DeleteFunc(list, isOther)
}

// isInside reports whether a destination is not outside of the cluster.
func (m *model) isInside(a netip.Addr) bool {
	contains := func(p netip.Prefix) bool { return p.Contains(a) }
	for _, f := range families() {
		if f.Has(a) && slices.ContainsFunc(m.inside(f), contains) {
			return true
		}
	}
	return false
}

// intervals returns the elements of insideSet.
func (m *model) intervals(f *family) nft.Elements {
	var list nft.Elements
	for _, p := range m.inside(f) {
		// After the last address of the family, Next is the zero Addr, and the interval has no end.
		first := p.Masked().Addr()
		end := lb.LastOf(p).Next()
		list.Put(insideSet, string(first.AsSlice()), string(end.AsSlice()))
	}

	return list.Merged()
}

// ports returns the elements of the bridges' table.
func (m *model) ports() (list nft.Elements) {
	for _, f := range families() {
		for pod, s := range m.sources {
			if f.Has(pod) && s.port.bridge != 0 {
				key := link(s.port.index) + string(pod.AsSlice())
				list.Put(portsSet+f.Suffix, key, "")
			}
		}
	}

	return list
}

// link encodes the index of a link.
func link(index int) string { return string(nft.Native(uint32(index))) }
