package bgp

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/nstest"
	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// router is the far end of sessions: it accepts connections, and records what it
// receives as text. It is no GoBGP server, because two of those in one process
// share package variables, and because it must be able to misbehave.
type router struct {
	t        *testing.T
	listener net.Listener
	address  netip.AddrPort
	asn      uint32
	// answer replaces the router's part of each connection after the OPEN it has read.
	answer func(net.Conn)
	wg     sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool
	opens []*gobgp.BGPOpen
	heard []string
	rib   map[string]string
}

// newRouter listens on an address of the loopback.
func newRouter(t *testing.T, address string, asn uint32, options ...func(*router)) *router {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Skipf("no such loopback address: %v", err)
	}
	r := &router{
		t: t, listener: l, address: l.Addr().(*net.TCPAddr).AddrPort(), asn: asn,
		conns: map[net.Conn]bool{}, rib: map[string]string{},
	}
	for _, option := range options {
		option(r)
	}
	r.wg.Go(r.accept)
	t.Cleanup(r.close)
	return r
}

func (r *router) close() {
	r.listener.Close()
	r.drop()
	r.wg.Wait()
}

// drop closes all connections without a NOTIFICATION.
func (r *router) drop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn := range r.conns {
		conn.Close()
	}
}

func (r *router) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		r.conns[conn] = true
		r.mu.Unlock()
		r.wg.Go(func() {
			r.serve(conn)
			conn.Close()
			r.mu.Lock()
			delete(r.conns, conn)
			r.mu.Unlock()
		})
	}
}

func (r *router) serve(conn net.Conn) {
	// Like most routers, send the OPEN first.
	if r.answer == nil {
		r.send(conn, r.open())
	}
	m, err := read(conn)
	if err != nil {
		return
	}
	if open, ok := m.Body.(*gobgp.BGPOpen); ok {
		r.mu.Lock()
		r.opens = append(r.opens, open)
		r.mu.Unlock()
	}
	if r.answer != nil {
		r.answer(conn)
		_, _ = io.Copy(io.Discard, conn)
		return
	}
	r.send(conn, gobgp.NewBGPKeepAliveMessage())
	for {
		m, err := read(conn)
		if err != nil {
			r.hear("connection closed")
			return
		}
		r.take(conn, m)
	}
}

func (r *router) take(conn net.Conn, m *gobgp.BGPMessage) {
	switch body := m.Body.(type) {
	case *gobgp.BGPKeepAlive:
		r.send(conn, gobgp.NewBGPKeepAliveMessage())
	case *gobgp.BGPNotification:
		r.hear(strings.TrimSpace(fmt.Sprintf("notification %d/%d %s", body.ErrorCode, body.ErrorSubcode,
			body.Data[min(1, len(body.Data)):])))
	case *gobgp.BGPUpdate:
		r.update(body)
	}
}

// update records an UPDATE as lines: "+ prefix attributes", "- prefix", "end of RIB".
func (r *router) update(u *gobgp.BGPUpdate) {
	if end, _ := u.IsEndOfRib(); end {
		r.hear("end of RIB")
		return
	}
	var add, del []string
	for _, p := range u.WithdrawnRoutes {
		del = append(del, p.NLRI.String())
	}
	for _, p := range u.NLRI {
		add = append(add, p.NLRI.String())
	}
	var words []string
	for _, a := range u.PathAttributes {
		switch a := a.(type) {
		case *gobgp.PathAttributeMpReachNLRI:
			for _, p := range a.Value {
				add = append(add, p.NLRI.String())
			}
			words = append(words, "via "+a.Nexthop.String())
		case *gobgp.PathAttributeMpUnreachNLRI:
			for _, p := range a.Value {
				del = append(del, p.NLRI.String())
			}
		default:
			words = append(words, attribute(a))
		}
	}
	for _, p := range slices.Sorted(slices.Values(del)) {
		r.hear("- " + p)
	}
	for _, p := range slices.Sorted(slices.Values(add)) {
		r.hear("+ " + p + " " + strings.Join(words, " "))
	}
}

func (r *router) hear(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard = append(r.heard, line)
	words := strings.SplitN(line, " ", 3)
	switch words[0] {
	case "+":
		r.rib[words[1]] = words[2]
	case "-":
		delete(r.rib, words[1])
	}
}

// log returns everything received so far, a line each.
func (r *router) log() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.heard, "\n")
}

// table returns the routes, a line each.
func (r *router) table() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lines []string
	for _, prefix := range slices.Sorted(maps.Keys(r.rib)) {
		lines = append(lines, prefix+" "+r.rib[prefix])
	}
	return strings.Join(lines, "\n")
}

// opened returns how often a session was opened.
func (r *router) opened() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.opens)
}

func attribute(a gobgp.PathAttributeInterface) string {
	switch a := a.(type) {
	case *gobgp.PathAttributeOrigin:
		return map[uint8]string{0: "igp", 1: "egp", 2: "incomplete"}[a.Value]
	case *gobgp.PathAttributeAsPath:
		text := "path"
		for _, segment := range a.Value {
			text += fmt.Sprintf(" %v", segment.GetAS())
		}
		return text
	case *gobgp.PathAttributeNextHop:
		return "via " + a.Value.String()
	case *gobgp.PathAttributeMultiExitDisc:
		return fmt.Sprintf("med %d", a.Value)
	case *gobgp.PathAttributeLocalPref:
		return fmt.Sprintf("preference %d", a.Value)
	case *gobgp.PathAttributeCommunities:
		text := "communities"
		for _, c := range a.Value {
			text += fmt.Sprintf(" %d:%d", c>>16, c&0xffff)
		}
		return text
	case *gobgp.PathAttributeLargeCommunities:
		text := "large"
		for _, c := range a.Values {
			text += " " + c.String()
		}
		return text
	}
	return fmt.Sprintf("attribute %d", a.GetType())
}

func (r *router) family() gobgp.Family {
	if r.address.Addr().Is4() {
		return gobgp.RF_IPv4_UC
	}
	return gobgp.RF_IPv6_UC
}

func (r *router) open() *gobgp.BGPMessage {
	caps := []gobgp.ParameterCapabilityInterface{
		gobgp.NewCapMultiProtocol(r.family()), gobgp.NewCapFourOctetASNumber(r.asn),
	}
	as := uint16(gobgp.AS_TRANS)
	if r.asn < 1<<16 {
		as = uint16(r.asn)
	}
	m, err := gobgp.NewBGPOpenMessage(as, 90, netip.MustParseAddr("192.0.2.250"),
		[]gobgp.OptionParameterInterface{gobgp.NewOptionParameterCapability(caps)})
	if err != nil {
		panic(err)
	}
	return m
}

func (r *router) send(conn net.Conn, m *gobgp.BGPMessage) {
	b, err := m.Serialize()
	if err != nil {
		panic(err)
	}
	_, _ = conn.Write(b) // a closed connection shows when it is read
}

func read(conn net.Conn) (*gobgp.BGPMessage, error) {
	b := make([]byte, gobgp.BGP_MAX_MESSAGE_LENGTH)
	if _, err := io.ReadFull(conn, b[:gobgp.BGP_HEADER_LENGTH]); err != nil {
		return nil, err
	}
	b = b[:binary.BigEndian.Uint16(b[16:])] // the length (RFC 4271 section 4.1)
	if _, err := io.ReadFull(conn, b[gobgp.BGP_HEADER_LENGTH:]); err != nil {
		return nil, err
	}
	return gobgp.ParseBGPMessage(b)
}

var must = nstest.Must
