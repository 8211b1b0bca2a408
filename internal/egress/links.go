package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// read returns what the kernel says about links and routes. After an error the view has the part that could be read.
func (t *Translator) read() *view {
	v := &view{ports: make(map[netip.Addr][]port)}
	if len(t.desired.Sources) == 0 {
		return v
	}

	devices, err := netlink.LinkList()
	if err != nil {
		t.config.Log.Warn("cannot list links", "error", err)
	}

	wanted := make(map[netip.Addr]bool)
	for _, s := range t.desired.Sources {
		wanted[s.Pod] = true
	}

	if err := v.readRoutes(devices, wanted, t.routers()); err != nil {
		t.config.Log.Warn("cannot list routes", "error", err)
	}

	if err := v.readPeers(devices, wanted); err != nil {
		t.config.Log.Warn("cannot list the addresses of pods", "error", err)
	}

	return v
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

// claim records that a port leads to a pod.
func (v *view) claim(pod netip.Addr, p port) {
	if !slices.Contains(v.ports[pod], p) {
		v.ports[pod] = append(v.ports[pod], p)
	}
}

// readRoutes reads the main routing table. A host route to a pod names the veth that leads to it. Prefixes behind a
// node of the cluster are not outside, but a default route says nothing.
func (v *view) readRoutes(devices []netlink.Link, wanted, routers map[netip.Addr]bool) error {
	veths := make(map[int]port)
	for _, d := range devices {
		a := d.Attrs()
		if d.Type() == "veth" && a.MasterIndex == 0 {
			veths[a.Index] = port{name: a.Name, index: a.Index}
		}
	}

	return netlink.RouteListFilteredIter(netlink.FAMILY_ALL, &netlink.Route{}, 0, func(r netlink.Route) bool {
		destination, ok := prefixOf(r.Dst)
		if !ok || destination.Bits() == 0 {
			return true
		}

		if slices.ContainsFunc(gateways(r), func(a netip.Addr) bool { return routers[a] }) {
			v.routed = append(v.routed, destination)
		}

		p, isVeth := veths[r.LinkIndex]
		if isVeth && destination.IsSingleIP() && wanted[destination.Addr()] && len(gateways(r)) == 0 {
			v.claim(destination.Addr(), p)
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
	bridges := make(map[int]bool)
	for _, d := range devices {
		bridges[d.Attrs().Index] = d.Type() == "bridge"
	}

	var socket *nl.NetlinkSocket
	for _, d := range devices {
		a := d.Attrs()
		if d.Type() != "veth" || !bridges[a.MasterIndex] || a.NetNsID < 0 {
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

		// The namespace may be gone by now: then the port has no address.
		for _, address := range peerAddresses(socket, a.NetNsID, a.ParentIndex) {
			if wanted[address] {
				v.claim(address, port{name: a.Name, index: a.Index, bridge: a.MasterIndex})
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
func peerAddresses(socket *nl.NetlinkSocket, namespace, index int) (list []netip.Addr) {
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		r := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		header := nl.NewIfAddrmsg(family)
		header.Index = uint32(index)
		r.AddData(header)
		id := binary.NativeEndian.AppendUint32(nil, uint32(namespace))
		r.AddData(nl.NewRtAttr(unix.IFA_TARGET_NETNSID, id))
		r.Sockets = sockets

		err := r.ExecuteIter(unix.NETLINK_ROUTE, unix.RTM_NEWADDR, func(message []byte) bool {
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
			return nil
		}
	}

	return list
}

// leavesByUplink reports whether the node's route to a destination leads over an uplink; true if that is unknown.
func (m *model) leavesByUplink(destination netip.Addr) bool {
	routes, err := netlink.RouteGet(destination.AsSlice())
	if err != nil || len(routes) == 0 {
		return true
	}

	for _, index := range m.uplinks {
		if routes[0].LinkIndex == index {
			return true
		}
	}
	return false
}

// Times of maintain.
const (
	// syncInterval is the shortest time between two synchronizations, and a readShare-th of the time the longest that
	// reading takes: a routing table may be large and change all the time.
	syncInterval = 50 * time.Millisecond
	readShare    = 10
	// firstRetry and lastRetry bound the time until the next attempt to find the link of a pod. No event reports that
	// a pod behind a bridge got its address.
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// maintain synchronizes after changes of links and routes until the context ends. It watches them only while there are
// sources.
func (t *Translator) maintain(ctx context.Context) error {
	var watch watcher
	defer watch.stop()
	wait := firstRetry
	for {
		var retry <-chan time.Time
		if len(t.Faults()) > 0 {
			retry = time.After(wait)
		}

		select {
		case <-ctx.Done():
			return nil
		case <-t.arrived:
			watch.follow(ctx, t)
			wait = firstRetry
			continue
		case <-t.wake:
			wait = firstRetry
		case <-retry:
			wait = min(2*wait, lastRetry)
		}

		nft.Sleep(ctx, max(syncInterval, readShare*t.resync()))
	}
}

// resync repeats the last Set with the links of this moment. It returns how long it took to read them.
func (t *Translator) resync() (reading time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.desired == nil {
		return 0
	}

	start := time.Now()
	uplinks, v := t.readUplinks(t.desired), t.read()
	reading = time.Since(start)
	t.uplinks = uplinks
	t.sync(v)
	return reading
}

// hasSources reports whether there are sources.
func (t *Translator) hasSources() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.desired != nil && len(t.desired.Sources) > 0
}

// watcher watches links and routes, or nothing.
type watcher struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

// follow starts or stops to watch.
func (w *watcher) follow(ctx context.Context, t *Translator) {
	wanted := t.hasSources()
	switch {
	case wanted && w.cancel == nil:
		ctx, w.cancel = context.WithCancel(ctx)
		w.ended = make(chan struct{})
		go func() {
			defer close(w.ended)
			t.watch(ctx)
		}()
	case !wanted:
		w.stop()
	}
}

// stop stops to watch.
func (w *watcher) stop() {
	if w.cancel != nil {
		w.cancel()
		<-w.ended
		w.cancel = nil
	}
}

// rewatchDelay is the pause before a failed watch starts again.
const rewatchDelay = time.Second

// watch wakes maintain when a link or a route changes, until the context ends.
func (t *Translator) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := t.watchOnce(ctx); err != nil {
			t.config.Log.Warn("cannot watch links and routes", "error", err)
			nft.Sleep(ctx, rewatchDelay)
		}
	}
}

// watchOnce watches until the context ends or the socket fails.
func (t *Translator) watchOnce(ctx context.Context) error {
	conn, err := mdnetlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return fmt.Errorf("open rtnetlink: %w", err)
	}

	for _, group := range []uint32{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE} {
		err = errors.Join(err, conn.JoinGroup(group))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("join notifications of rtnetlink: %w", err), conn.Close())
	}

	// Something may have changed before the socket joined the groups.
	t.wake.Kick()
	return nft.Receive(ctx, conn, t.wake.Kick, func(mdnetlink.Message) { t.wake.Kick() })
}
