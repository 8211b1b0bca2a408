package egress

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// attempts limits how often an interrupted listing starts again.
const attempts = 10

// read returns what the kernel says about links and routes; after an error, what it said before. A link that is missing
// in a listing would cost its pod the right.
func (t *Translator) read() *view {
	if len(t.desired.Sources) == 0 {
		return &view{}
	}

	v, err := t.readOnce()
	for n := 1; n < attempts && errors.Is(err, netlink.ErrDumpInterrupted); n++ {
		v, err = t.readOnce()
	}

	t.unread = err != nil
	if err != nil {
		t.config.Log.Warn("cannot read links and routes", "error", err)
		return cmp.Or(t.view, v)
	}

	t.view = v
	return v
}

// readOnce reads links and routes. After an error the view has what could be read.
func (t *Translator) readOnce() (*view, error) {
	v := &view{ports: make(map[netip.Addr][]port), veths: make(map[int]port)}
	devices, err := netlink.LinkList()
	if err != nil {
		return v, fmt.Errorf("list links: %w", err)
	}

	v.addVeths(devices)
	wanted := make(map[netip.Addr]bool)
	for _, s := range t.desired.Sources {
		wanted[s.Pod] = true
	}

	err = v.readRoutes(wanted, t.routers())
	if err != nil {
		return v, fmt.Errorf("list routes: %w", err)
	}

	err = v.readPeers(devices, wanted)
	if err != nil {
		return v, fmt.Errorf("list addresses of pods: %w", err)
	}

	return v, nil
}

// routers returns the addresses that nodes of the cluster have as routers.
func (t *Translator) routers() map[netip.Addr]bool {
	out := make(map[netip.Addr]bool)
	for _, a := range t.desired.Nodes {
		out[a.WithZone("")] = true
	}

	for _, p := range t.desired.Passes {
		out[p.Via.WithZone("")] = true
	}

	return out
}

// addVeths adds the veths that may lead to pods: veths without a master, and ports of bridges.
func (v *view) addVeths(devices []netlink.Link) {
	bridges := make(map[int]bool)
	for _, d := range devices {
		bridges[d.Attrs().Index] = d.Type() == "bridge"
	}

	for _, d := range devices {
		a := d.Attrs()
		mayLead := a.MasterIndex == 0 || bridges[a.MasterIndex]
		if !mayLead || d.Type() != "veth" {
			continue
		}

		v.veths[a.Index] = port{
			name:   a.Name,
			index:  a.Index,
			bridge: a.MasterIndex,
		}
	}
}

// claim records that a port leads to a pod.
func (v *view) claim(pod netip.Addr, p port) {
	if !slices.Contains(v.ports[pod], p) {
		v.ports[pod] = append(v.ports[pod], p)
	}
}

// readRoutes reads the main routing table. A host route to a pod names the veth that leads to it. Prefixes behind a
// node of the cluster are not outside, but a default route says nothing.
func (v *view) readRoutes(wanted, routers map[netip.Addr]bool) error {
	return netlink.RouteListFilteredIter(netlink.FAMILY_ALL, &netlink.Route{}, 0, func(r netlink.Route) bool {
		destination, ok := prefixOf(r.Dst)
		if !ok || destination.Bits() <= lb.FamilyOf(destination.Addr()).DefaultBits() {
			return true
		}

		through := gateways(r)
		isNode := func(a netip.Addr) bool { return routers[a] }
		if slices.ContainsFunc(through, isNode) {
			v.routed = append(v.routed, destination)
		}

		pod := destination.Addr()
		isPod := destination.IsSingleIP() && wanted[pod]
		p, isVeth := v.veths[r.LinkIndex]
		isPort := isVeth && p.bridge == 0
		if isPod && isPort && len(through) == 0 {
			v.claim(pod, p)
		}
		return true
	})
}

// prefixOf converts a prefix; false for none.
func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}

	a, ok := netip.AddrFromSlice(n.IP)
	bits, size := n.Mask.Size()
	if size == 32 {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, bits), ok
}

// gateways returns the routers of a route.
func gateways(r netlink.Route) (list []netip.Addr) {
	add := func(gateway net.IP, via netlink.Destination) {
		if v, ok := via.(*netlink.Via); ok && gateway == nil {
			gateway = v.Addr
		}
		if a, ok := netip.AddrFromSlice(gateway); ok {
			list = append(list, a.Unmap())
		}
	}

	add(r.Gw, r.Via)
	for _, hop := range r.MultiPath {
		add(hop.Gw, hop.Via)
	}

	return list
}

// readPeers finds the pods behind bridges. No route names the port of a bridge that leads to a pod. But the kernel
// lists the addresses of a port's peer, even though the peer is in the pod's network namespace.
func (v *view) readPeers(devices []netlink.Link, wanted map[netip.Addr]bool) error {
	var socket *nl.NetlinkSocket
	for _, d := range devices {
		a := d.Attrs()
		p := v.veths[a.Index]
		if p.bridge == 0 || a.NetNsID < 0 {
			continue
		}

		if socket == nil {
			var err error
			socket, err = strictSocket()
			if err != nil {
				return err
			}
			defer socket.Close()
		}

		addresses, err := peerAddresses(socket, a.NetNsID, a.ParentIndex)
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}

		// After any other error the namespace is gone.
		for _, address := range addresses {
			if wanted[address] {
				v.claim(address, p)
			}
		}
	}

	return nil
}

// strictSocket opens a socket whose requests the kernel checks strictly. Without that it ignores the namespace that a
// request names.
func strictSocket() (*nl.NetlinkSocket, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}

	err = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("set strict checks of rtnetlink: %w", err)
	}

	return s, nil
}

// peerAddresses returns the addresses of a link in another network namespace.
func peerAddresses(socket *nl.NetlinkSocket, namespace, index int) (list []netip.Addr, err error) {
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		r := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		header := nl.NewIfAddrmsg(family)
		header.Index = uint32(index)
		r.AddData(header)
		id := binary.NativeEndian.AppendUint32(nil, uint32(namespace))
		r.AddData(nl.NewRtAttr(unix.IFA_TARGET_NETNSID, id))
		r.Sockets = sockets

		err = r.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWADDR, func(message []byte) bool {
			isPeer := len(message) >= unix.SizeofIfAddrmsg && nl.DeserializeIfAddrmsg(message).Index == uint32(index)
			if !isPeer {
				return true
			}

			attributes := message[unix.SizeofIfAddrmsg:]
			octets := nft.Attribute(attributes, unix.IFA_LOCAL)
			if octets == nil {
				octets = nft.Attribute(attributes, unix.IFA_ADDRESS)
			}
			if a, ok := netip.AddrFromSlice(octets); ok {
				list = append(list, a)
			}
			return true
		})
		if err != nil {
			return nil, err
		}
	}

	return list, nil
}

// leavesByUplink reports whether the route of a source to a destination leads over an uplink; true if that is unknown.
func (m *model) leavesByUplink(s source, destination netip.Addr) bool {
	exit := m.exitTo(s, destination)
	if exit == 0 {
		return true
	}

	for _, index := range m.uplinks {
		if exit == index {
			return true
		}
	}
	return false
}

// exitTo returns the link by which new connections of a source leave to a destination; 0 if that is unknown. For a
// source without a way it is the link of the node's own packets.
func (m *model) exitTo(s source, destination netip.Addr) int {
	var options netlink.RouteGetOptions
	number := m.wayOf(s).number
	if number > 0 {
		options.IifIndex = s.port.link()
		options.SrcAddr = s.Pod.AsSlice()
		options.Mark = wayMark(number)
	}

	routes, err := netlink.RouteGetWithOptions(destination.AsSlice(), &options)
	if err != nil || len(routes) == 0 {
		return 0
	}
	return routes[0].LinkIndex
}
