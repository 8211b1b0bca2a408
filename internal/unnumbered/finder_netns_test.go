package unnumbered

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mdlayher/ndp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/ipv6"

	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const patience = 30 * time.Second

// startFinder runs a Finder on this node, whose links are watched.
func startFinder(t *testing.T, changed func()) *Finder {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	var f *Finder
	// As in the speaker, a change of links leads to a Set.
	var wanted atomic.Pointer[[]string]
	wanted.Store(&[]string{})
	links := link.New(log, func() { f.Set(*wanted.Load()) })
	f = New(Config{Log: log, Links: links.Links, Established: func(netip.Addr) bool { return false }, Changed: changed})
	wanted.Store(&[]string{"eth0", "eth7"})
	f.Set(*wanted.Load())
	nstest.Running(t, links.Run)
	nstest.Running(t, f.Run)
	return f
}

// neighbour is a router on the link that hears and sends what a test wants.
type neighbour struct {
	t    *testing.T
	conn *ndp.Conn
	// other is this node's address, the only one whose questions count.
	other atomic.Value
	// adverts and asks count what was heard; bad is what no advertisement of ours may have.
	adverts, asks atomic.Int64
	answers       atomic.Bool
	bad           atomic.Value
}

func startNeighbour(t *testing.T, ns *nstest.NS, name, address string) *neighbour {
	t.Helper()
	n := &neighbour{t: t}
	self := nstest.Self(t)
	nstest.Until(t, patience, "this node's address", func() bool {
		for _, a := range addresses(t, self, self.Link("eth0")) {
			if got, _ := netip.AddrFromSlice(a.IP); got.IsLinkLocalUnicast() {
				n.other.Store(got)
			}
		}
		return n.other.Load() != nil
	})
	l := ns.Link(name).Attrs()
	ns.Do(func() {
		var err error
		nstest.Until(t, patience, "the router's address is usable", func() bool {
			n.conn, _, err = ndp.Listen(&net.Interface{Index: l.Index, Name: name, MTU: 1500}, ndp.Addr(address))
			return err == nil
		})
	})
	for _, group := range []netip.Addr{allNodes, allRouters} {
		must(t, n.conn.JoinGroup(group))
	}
	must(t, n.conn.SetControlMessage(ipv6.FlagHopLimit, true))
	t.Cleanup(func() { n.conn.Close() })
	go func() {
		for {
			m, control, from, err := n.conn.ReadFrom()
			if err != nil {
				return
			}
			switch m := m.(type) {
			case *ndp.RouterSolicitation:
				if from.WithZone("") != n.other.Load() {
					continue // a kernel's
				}
				n.asks.Add(1)
				if n.answers.Load() {
					n.advertise()
				}
			case *ndp.RouterAdvertisement:
				if control.HopLimit != ndp.HopLimit || !from.IsLinkLocalUnicast() || m.RouterLifetime != 0 ||
					m.ManagedConfiguration || m.OtherConfiguration ||
					m.CurrentHopLimit != 0 || len(m.Options) != 1 {
					n.bad.Store(*m)
				}
				n.adverts.Add(1)
			}
		}
	}()
	return n
}

func (n *neighbour) advertise() {
	if err := n.conn.WriteTo(&ndp.RouterAdvertisement{}, nil, allNodes); err != nil {
		n.t.Log(err)
	}
}

// A router that answers is found at once, also by a node that forwards, and gets advertisements. The link's router
// stays while it answers; what is wrong is said.
func TestFinder(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns, other := nstest.Self(t), nstest.New(t), nstest.New(t)
		nstest.Veth(t, ns, "a", self, "eth0")
		nstest.Veth(t, other, "b", ns, "c")
		ns.Bridge("lan", "a", "c")
		self.Sysctl("ipv6/conf/all/forwarding", "1")
		ns.AddAddress("lan", "fe80::a/64")
		other.AddAddress("b", "fe80::b/64")
		f := startFinder(t, func() {})
		a := startNeighbour(t, ns, "lan", "fe80::a")
		a.answers.Store(true)
		nstest.Until(t, patience, "the router is found", func() bool {
			return f.Found("eth0").Address == routerA.WithZone("eth0")
		})
		if got := f.Found("eth0"); got.Source.Zone() != "eth0" || !got.Source.IsLinkLocalUnicast() || got.Looking ||
			got.Problem != "" {
			t.Errorf("%+v", got)
		}
		nstest.Until(t, patience, "the other link is missed", func() bool {
			return f.Found("eth7") == Router{Problem: "this node has no link eth7"}
		})
		nstest.Until(t, patience, "this node advertises itself", func() bool { return a.adverts.Load() >= 2 })

		b := startNeighbour(t, other, "b", "fe80::b")
		b.advertise()
		nstest.Until(t, patience, "the second router is said", func() bool {
			return f.Found("eth0").Problem == "link eth0 has more routers than fe80::a: fe80::b; it should have one"
		})
		if got := f.Found("eth0").Address; got != routerA.WithZone("eth0") {
			t.Errorf("the session moved to %s", got)
		}
		if bad := b.bad.Load(); bad != nil {
			t.Errorf("this node advertises %+v", bad)
		}

		asked := a.asks.Load()
		ns.SetDown("a")
		nstest.Until(t, patience, "the link is down", func() bool {
			return strings.HasSuffix(f.Found("eth0").Problem, "is down")
		})
		a.answers.Store(false)
		b.answers.Store(true)
		ns.SetUp("a")
		nstest.Until(t, patience, "the router behind the cable is another one", func() bool {
			return f.Found("eth0").Address == routerB.WithZone("eth0")
		})
		// The bridge may have opened its port after the first.
		if a.asks.Load() < asked+maxSolicitations-1 {
			t.Errorf("the first router was asked %d times", a.asks.Load()-asked)
		}
	})
}

// The link may come later, lose its address, and go.
func TestFinderLink(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		changes := make(chan struct{}, 100)
		f := startFinder(t, func() { changes <- struct{}{} })
		nstest.Until(t, patience, "there is no link", func() bool {
			return f.Found("eth0").Problem == "this node has no link eth0"
		})
		nstest.Veth(t, self, "eth0", ns, "eth0")
		ns.AddAddress("eth0", "fe80::a/64")
		a := startNeighbour(t, ns, "eth0", "fe80::a")
		a.answers.Store(true)
		nstest.Until(t, patience, "the router is found", func() bool {
			return f.Found("eth0").Address == routerA.WithZone("eth0")
		})

		nstest.Until(t, patience, "this node advertises itself", func() bool { return a.adverts.Load() > 0 })
		before, began := a.adverts.Load(), time.Now()
		nstest.Until(t, patience, "it goes on", func() bool {
			must(t, a.conn.WriteTo(&ndp.RouterSolicitation{}, nil, allRouters))
			return a.adverts.Load() >= before+4
		})
		if took := time.Since(began); took < 3*minInterval {
			t.Errorf("under a flood of solicitations, four advertisements in %v", took)
		}

		l := self.Link("eth0")
		for _, own := range addresses(t, self, l) {
			must(t, self.Netlink().AddrDel(l, &own))
		}
		nstest.Until(t, patience, "there is no address", func() bool {
			return f.Found(
				"eth0",
			) == Router{Problem: "link eth0 has no IPv6 link-local address: it is down, or IPv6 is off there"}
		})
		a.other.Store(netip.MustParseAddr("fe80::99"))
		self.AddAddress("eth0", "fe80::99/64")
		nstest.Until(t, patience, "it is found from the new address", func() bool {
			return f.Found("eth0") == Router{Address: routerA.WithZone("eth0"), Source: netip.MustParseAddr("fe80::99%eth0")}
		})

		self.Delete("eth0")
		nstest.Until(t, patience, "the link is gone", func() bool {
			return f.Found("eth0") == Router{Problem: "this node has no link eth0"}
		})
		if len(changes) == 0 {
			t.Error("no change was reported")
		}
	})
}

// Who sends from another address, or across a router, is not heard; a flood is read at a bounded rate.
func TestFinderHostile(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, self, "eth0", ns, "eth0")
		ns.AddAddress("eth0", "fe80::a/64", "fe80::b/64", "2001:db8::1/64")
		self.AddAddress("eth0", "2001:db8::2/64")
		f := startFinder(t, func() {})
		far, near := startNeighbour(t, ns, "eth0", "2001:db8::1"), startNeighbour(t, ns, "eth0", "fe80::a")
		rejected := func() int { return f.count("rejected") }
		nstest.Until(t, patience, "an advertisement from a global address is refused", func() bool {
			far.advertise()
			return rejected() > 0
		})
		before := rejected()
		crossed := &ipv6.ControlMessage{HopLimit: 64, IfIndex: ns.Link("eth0").Attrs().Index}
		nstest.Until(t, patience, "one with another hop limit too", func() bool {
			must(t, near.conn.WriteTo(&ndp.RouterAdvertisement{}, crossed, allNodes))
			return rejected() > before
		})
		if got := f.Found("eth0"); got.Address.IsValid() {
			t.Errorf("%+v", got)
		}
		before, began := rejected(), time.Now()
		for range 5000 {
			far.advertise()
		}
		nstest.Until(t, patience, "the true one is heard in the end", func() bool {
			near.advertise()
			return f.Found("eth0").Address == routerA.WithZone("eth0")
		})
		windows := uint64(time.Since(began)/time.Second) + 2
		if read := rejected() - before; read > int(windows*maxReads) {
			t.Errorf("%d packets were read in %v", read, time.Since(began))
		}
	})
}

// Of a flood of invented routers one is remembered, and not each advertisement changes what was found.
func TestFinderFlood(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, self, "eth0", ns, "eth0")
		ns.AddAddress("eth0", "fe80::a/64")
		var changes atomic.Int64
		f := startFinder(t, func() { changes.Add(1) })
		a := startNeighbour(t, ns, "eth0", "fe80::a")
		a.answers.Store(true)
		nstest.Until(t, patience, "the router is found", func() bool {
			return f.Found("eth0").Address == routerA.WithZone("eth0")
		})
		var invented []*neighbour
		for i := range 16 {
			address := fmt.Sprintf("fe80::%x", 0x100+i)
			ns.AddAddress("eth0", address+"/64")
			invented = append(invented, startNeighbour(t, ns, "eth0", address))
		}
		received := func() int { return f.count("received") }
		heard, before := received(), changes.Load()
		nstest.Until(t, patience, "many are heard", func() bool {
			for _, n := range invented {
				n.advertise()
			}
			return received() > heard+4*maxReads
		})
		if told := changes.Load() - before; told == 0 || told > 2 {
			t.Errorf("%d changes", told)
		}
		if got := f.Found("eth0").Address; got != routerA.WithZone("eth0") {
			t.Errorf("the session moved to %s", got)
		}
	})
}

func addresses(t *testing.T, ns *nstest.NS, l netlink.Link) []netlink.Addr {
	t.Helper()
	all, err := ns.Netlink().AddrList(l, netlink.FAMILY_V6)
	must(t, err)
	return all
}

// count is how many messages on eth0 are counted.
func (f *Finder) count(direction string) int {
	return int(testutil.ToFloat64(f.Messages.WithLabelValues("eth0", direction)))
}

var must = nstest.Must
