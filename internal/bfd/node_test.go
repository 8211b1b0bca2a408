package bfd

import (
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/vishvananda/netlink"
)

// patience is for how long tests wait on a machine that has much else to do.
const patience = 30 * time.Second

// node is a Monitor whose sessions run in this process.
type node struct {
	*Monitor
	t testing.TB
	// conn is the process's end.
	conn  net.Conn
	ended chan struct{}
}

func startNode(t *testing.T) *node {
	t.Helper()
	return startNodeThat(t, func() bool { return false })
}

// startNodeThat starts a node that hangs at times.
func startNodeThat(t *testing.T, hangs func() bool) *node {
	t.Helper()
	ours, theirs := net.Pipe()
	n := &node{t: t, conn: theirs, ended: make(chan struct{})}
	n.Monitor = New(Config{Log: slog.New(slog.DiscardHandler), Changed: func() {}})
	go func() {
		defer close(n.ended)
		Serve(theirs, hangs)
	}()
	go n.Serve(ours)
	t.Cleanup(n.stop)
	return n
}

// stop has the sessions say goodbye.
func (n *node) stop() {
	_ = n.conn.SetReadDeadline(time.Time{}.Add(1)) // it may have ended
	<-n.ended
}

func (n *node) status(name string) Status {
	for _, s := range n.Statuses() {
		if s.Name == name {
			return s
		}
	}
	return Status{}
}

func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	nstest.Until(n.t, patience, what, ok)
}

// falls waits until the session is not up, and returns how long that took since a time.
func (n *node) falls(name string, since time.Time) time.Duration {
	n.t.Helper()
	n.until(name+" falls", func() bool { return n.status(name).State != Up })
	return time.Since(since)
}

// The addresses of both sides, by the name of the session. The far ones are behind a router.
var sides = map[string]struct{ node, router string }{
	"v4":   {"192.0.2.1", "192.0.2.2"},
	"v6":   {"2001:db8:1::1", "2001:db8:1::2"},
	"link": {"fe80::1", "fe80::2"},
	"far4": {"198.51.100.1", "203.0.113.1"},
	"far6": {"2001:db8:2::1", "2001:db8:3::1"},
}

// connect joins this node and a router by a link, and by a path over another router.
func connect(t *testing.T) (self, router, middle *nstest.NS) {
	t.Helper()
	self, router, middle = nstest.Self(t), nstest.New(t), nstest.New(t)
	nstest.Veth(t, self, "lan", router, "lan")
	self.AddAddress("lan", "192.0.2.1/24", "2001:db8:1::1/64", "fe80::1/64")
	router.AddAddress("lan", "192.0.2.2/24", "2001:db8:1::2/64", "fe80::2/64")
	nstest.Veth(t, self, "up", middle, "near")
	nstest.Veth(t, middle, "far", router, "up")
	self.AddAddress("up", "198.51.100.1/24", "2001:db8:2::1/64")
	middle.AddAddress("near", "198.51.100.9/24", "2001:db8:2::9/64")
	middle.AddAddress("far", "203.0.113.9/24", "2001:db8:3::9/64")
	router.AddAddress("up", "203.0.113.1/24", "2001:db8:3::1/64")
	middle.Sysctl("ipv4/ip_forward", "1")
	middle.Sysctl("ipv6/conf/all/forwarding", "1")
	self.Output("ip", "route", "add", "203.0.113.0/24", "via", "198.51.100.9")
	self.Output("ip", "-6", "route", "add", "2001:db8:3::/64", "via", "2001:db8:2::9")
	router.Output("ip", "route", "add", "198.51.100.0/24", "via", "203.0.113.9")
	router.Output("ip", "-6", "route", "add", "2001:db8:2::/64", "via", "2001:db8:3::9")
	return self, router, middle
}

// peersOf are the node's sessions with a router: 100 ms, fifteen times, longer than a process waits for a core.
func peersOf(change ...func(*Peer)) []Peer {
	var out []Peer
	for name, s := range sides {
		p := Peer{
			Name: name, Address: netip.MustParseAddr(s.router), Transmit: 100 * time.Millisecond,
			Receive: 100 * time.Millisecond, Multiplier: 15,
			MultiHop: name == "far4" || name == "far6", MinimumTTL: 254,
		}
		if name == "link" {
			p.Interface = "lan"
		}
		if p.Links = linksOf("lan"); p.MultiHop {
			p.Links = linksOf("lan", "up")
		}
		for _, c := range change {
			c(&p)
		}
		out = append(out, p)
	}
	return out
}

// linksOf returns the indices of the links that exist.
func linksOf(names ...string) (out []int) {
	for _, name := range names {
		if l, err := netlink.LinkByName(name); err == nil {
			out = append(out, l.Attrs().Index)
		}
	}
	return out
}

// only keeps one of the sessions.
func only(name string, change ...func(*Peer)) []Peer {
	for _, p := range peersOf(change...) {
		if p.Name == name {
			return []Peer{p}
		}
	}
	panic("no session " + name)
}

// daemon is a real router.
type daemon interface {
	// up returns whether its session with an address is up.
	up(address string) bool
	Kill()
	Start()
	Signal(syscall.Signal)
}

// frr is FRRouting.
type frr struct{ *nstest.FRR }

// startFRR starts zebra, bfdd and other daemons.
func startFRR(t *testing.T, ns *nstest.NS, config string, others ...string) frr {
	t.Helper()
	daemons := [][]string{{"bfdd"}}
	for _, d := range others {
		daemons = append(daemons, []string{d})
	}
	return frr{nstest.StartFRR(t, ns, config, daemons...)}
}

// frrPeer is what FRR shows of a session.
type frrPeer struct {
	Peer, Status, Diagnostic string
	MultiHop                 bool
	Passive                  bool   `json:"passive-mode"`
	RemoteDiagnostic         string `json:"remote-diagnostic"`
	RemoteReceive            int    `json:"remote-receive-interval"`
	RemoteTransmit           int    `json:"remote-transmit-interval"`
	RemoteMultiplier         int    `json:"remote-detect-multiplier"`
}

func (f frr) peer(address string) frrPeer {
	var all []frrPeer
	f.ShowJSON("show bfd peers", &all)
	for _, p := range all {
		if p.Peer == address {
			return p
		}
	}
	return frrPeer{}
}

func (f frr) up(address string) bool { return f.peer(address).Status == "up" }

// bird is the BIRD Internet Routing Daemon.
type bird struct{ *nstest.BIRD }

func startBIRD(t *testing.T, ns *nstest.NS, config string) bird {
	t.Helper()
	return bird{nstest.StartBIRD(t, ns, config)}
}

// line is what BIRD shows of a session: address, interface, state, since, interval, timeout.
func (b bird) line(address string) []string {
	for l := range strings.Lines(b.Show("show bfd sessions")) {
		if f := strings.Fields(l); len(f) > 2 && f[0] == address {
			return f
		}
	}
	return nil
}

func (b bird) up(address string) bool {
	l := b.line(address)
	return l != nil && l[2] == "Up"
}
