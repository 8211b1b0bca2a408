package engine

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// bgpPort is the port on which routers and daemons listen (RFC 4271 section 8.2.1).
const bgpPort = 179

// occupied returns the local address of this session, and reports whether another process of this node has a connection
// to the router from it.
//
// A router has one session with an address. BIRD ends it when a new connection opens, so two daemons end each other's
// sessions. FRR refuses the new connection. If the sockets cannot be listed, the address counts as free.
func occupied(s lb.Peer) (from netip.Addr, isOccupied bool) {
	from = sourceOf(s)
	if !from.IsValid() {
		return from, false
	}

	own := ownSockets() // complete, because this goroutine opens all connections
	for _, ports := range []struct{ local, remote uint16 }{{remote: s.Port}, {local: bgpPort}} {
		for _, c := range connections(ports.local, ports.remote) {
			if c.local == from && c.remote == s.Address && !own[c.inode] {
				return from, true
			}
		}
	}

	return from, false
}

// sourceOf returns the address from which this node dials a router; the zero Addr if that is not known.
func sourceOf(s lb.Peer) netip.Addr {
	if s.SourceAddress.IsValid() {
		return s.SourceAddress.WithZone("")
	}

	options := &netlink.RouteGetOptions{Oif: s.Address.Zone()}
	routes, err := netlink.RouteGetWithOptions(s.Address.WithZone("").AsSlice(), options)
	if err != nil || len(routes) == 0 {
		return netip.Addr{} // without a route there is an error too
	}

	source, _ := netip.AddrFromSlice(routes[0].Src)
	return source.Unmap()
}

// connection is an established TCP connection in this network namespace. A link-local remote address has a zone.
type connection struct {
	local, remote netip.Addr
	inode         uint32
}

// connections returns the established TCP connections with these ports; 0 is any port. The kernel selects them, because
// a node may have 100,000 others.
func connections(local, remote uint16) (out []connection) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		request.AddRawData(diagRequest(family, local, remote))
		messages, _ := request.Execute(unix.NETLINK_INET_DIAG, 0)
		for _, m := range messages {
			if c, ok := diagConnection(m); ok {
				out = append(out, c)
			}
		}
	}

	return out
}

const (
	// diagRequestLength and diagLength are the sizes of inet_diag_req_v2 and inet_diag_msg of linux/inet_diag.h, in
	// bytes. Both contain an inet_diag_sockid, in which addresses have 16 octets.
	diagRequestLength, diagLength = 56, 72
	// established is the bit of TCP_ESTABLISHED of linux/tcp_states.h.
	established = 1 << 1
)

// diagRequest encodes an inet_diag_req_v2.
func diagRequest(family uint8, local, remote uint16) []byte {
	b := make([]byte, diagRequestLength)
	b[0], b[1] = family, unix.IPPROTO_TCP
	nl.NativeEndian().PutUint32(b[4:], established)
	binary.BigEndian.PutUint16(b[8:], local)
	binary.BigEndian.PutUint16(b[10:], remote)
	return b
}

// diagConnection decodes an inet_diag_msg.
func diagConnection(b []byte) (c connection, ok bool) {
	if len(b) < diagLength {
		return c, false
	}

	length := 16
	if b[0] == unix.AF_INET {
		length = 4
	}

	local, _ := netip.AddrFromSlice(b[8 : 8+length])
	remote, _ := netip.AddrFromSlice(b[24 : 24+length])
	c = connection{local.Unmap(), remote.Unmap(), nl.NativeEndian().Uint32(b[68:])}
	if c.remote.IsLinkLocalUnicast() && c.remote.Is6() {
		link, err := net.InterfaceByIndex(int(nl.NativeEndian().Uint32(b[40:])))
		if err != nil {
			return c, false
		}

		c.remote = c.remote.WithZone(link.Name)
	}

	return c, true
}

// ownSockets returns the inodes of this process' sockets.
func ownSockets() map[uint32]bool {
	own := map[uint32]bool{}
	files, _ := filepath.Glob("/proc/self/fd/*")
	for _, file := range files {
		to, _ := os.Readlink(file) // the file may be closed already
		var inode uint32
		if _, err := fmt.Sscanf(to, "socket:[%d]", &inode); err == nil {
			own[inode] = true
		}
	}

	return own
}
