package node

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/relay"
	"k8s.io/client-go/rest"
)

const relayedAddress = "192.0.2.100"

// desiredRelay relays an address to another node since a time.
func desiredRelay(since time.Time) relay.Desired {
	a := netip.MustParseAddr(relayedAddress)
	return relay.Desired{Relays: lb.MapOf(map[netip.Addr]lb.Relay{
		a: {Address: a, Former: "w2", Via: netip.MustParseAddr("192.0.2.2"), Link: "eth0", Start: since},
	})}
}

// oneLink gives the namespace a link, and returns a source of links.
func oneLink(t *testing.T, self *nstest.NS) func() []lb.Interface {
	nstest.Veth(t, self, "eth0", nstest.New(t), "eth0")
	return func() []lb.Interface {
		l := self.Link("eth0").Attrs()
		return []lb.Interface{{Index: l.Index, Name: l.Name, MAC: lb.MACFrom(l.HardwareAddr), Up: true}}
	}
}

// earlierRun leaves a relay in the kernel.
func earlierRun(t *testing.T, links func() []lb.Interface) {
	t.Helper()
	former := relay.New(relay.Config{Log: slog.New(slog.DiscardHandler), Links: links})
	stop := background(t, former.Run)
	d := desiredRelay(time.Time{})
	d.Expect = true // both tables
	former.Set(d)
	stop()
}

// TestFilterOnlyRelayed: while the other speakers are not known, the limits on new connections do not apply to
// addresses that the kernel still relays.
func TestFilterOnlyRelayed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self := nstest.Self(t)
		links := oneLink(t, self)
		earlierRun(t, links)
		w := newTestLoop(links)
		w.atCluster(t, &rest.Config{Host: "http://192.0.2.3"})
		must(t, w.filterOnly(w.read(links())))
		if got := self.Output("nft", "list", "table", "inet", "holdfast"); !strings.Contains(got, relayedAddress) {
			t.Errorf("%s is relayed, but not in the filter:\n%s", relayedAddress, got)
		}
	})
}

// TestOff: where filtering or relaying is turned off, what an earlier run left is removed.
func TestOff(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self := nstest.Self(t)
		links := oneLink(t, self)
		earlierRun(t, links)
		must(t, newTestGuard(false).set(plan.Plan{}, lb.SetOf[netip.Addr](), lb.Node{Name: "w1"}, nil))
		tables := func() string { return strings.TrimSpace(self.Output("nft", "list", "tables")) }
		if got := tables(); strings.Count(got, "holdfast") != 3 {
			t.Fatalf("the earlier run left\n%s", got)
		}
		off, relays := newTestGuard(true), NewRelays(slog.New(slog.DiscardHandler), Settings{}, links, func() {})
		for range 2 {
			must(t,
				errors.Join(off.set(plan.Plan{}, lb.SetOf[netip.Addr](), lb.Node{Name: "w1"}, nil),
					relays.set(desiredRelay(time.Time{}))))
			if got := tables(); got != "" || off.failed() || relays.lasting().Len() != 0 {
				t.Errorf("filter and relays are off, and there is\n%s", got)
			}
		}
	})
}

// TestRelayedEnds shows that the filter follows a relay that ends and begins again.
func TestRelayedEnds(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		kicked := make(chan struct{}, 1)
		relayer := relay.New(relay.Config{
			Log: slog.New(slog.DiscardHandler), Links: oneLink(t, nstest.Self(t)), Changed: func() { kicked <- struct{}{} },
			IdleTime: time.Second,
		})
		r := &Relays{Relayer: relayer, on: true}
		background(t, r.Run)
		want := []netip.Addr{netip.MustParseAddr(relayedAddress)}
		d := desiredRelay(time.Now())
		must(t, r.set(d))
		if got := slices.Collect(r.relayed(d.Relays).Keys()); !slices.Equal(got, want) {
			t.Errorf("relayed are %v", got)
		}
		select {
		case <-kicked:
		case <-time.After(10 * time.Second):
			t.Fatal("the end of the relay kicks nothing")
		}
		if got := r.relayed(d.Relays); got.Len() != 0 {
			t.Errorf("after its end relayed are %v", got)
		}
		if got := slices.Collect(r.relayed(desiredRelay(time.Now()).Relays).Keys()); !slices.Equal(got, want) {
			t.Errorf("for the address that moves again relayed are %v", got)
		}
		if got, via := r.inherited(), netip.MustParseAddr("192.0.2.2"); r.lasting().Len() != 0 || got[want[0]] != via {
			t.Errorf("a next run would inherit %v, and relay %v", got, r.lasting())
		}
	})
}

// readLinks returns the links of this namespace as the speaker sees them.
func readLinks(t *testing.T) []lb.Interface {
	t.Helper()
	m := link.New(slog.New(slog.DiscardHandler), func() {})
	stop := background(t, m.Run)
	nstest.Until(t, 10*time.Second, "the links", m.Synced)
	stop()
	return m.Links()
}

// TestUnknownLinks has a Service that admits only the cluster's own traffic. It stays closed to packets from a link
// that appeared while no speaker ran, unless the link has a name that only pods' links have.
func TestUnknownLinks(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		node.SetUp("lo")
		node.Sysctl("ipv4/ip_forward", "1")
		node.Sysctl("ipv6/conf/all/forwarding", "1")
		vip4, vip6 := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8:f::10")
		node.AddAddress("lo", "10.96.0.7/32", "fd01::7/128")
		listener, err := net.Listen("tcp", ":80")
		must(t, err)
		defer listener.Close()
		// join puts a host behind a new link of the node.
		join := func(name, v4, v6 string) *nstest.NS {
			far := nstest.New(t)
			nstest.Veth(t, node, name, far, "eth0")
			node.Sysctl("ipv4/conf/"+name+"/rp_filter", "0")
			near4, near6 := netip.MustParseAddr(v4), netip.MustParseAddr(v6)
			if name == "eth0" || name == "wg1" {
				node.AddAddress(name, v4+"/24", v6+"/64")
			} else {
				node.AddAddress(name, v4+"/32", v6+"/128")
				node.Output("ip", "route", "add", near4.Next().String(), "dev", name)
				node.Output("ip", "-6", "route", "add", near6.Next().String(), "dev", name)
			}
			far.AddAddress("eth0", near4.Next().String()+"/24", near6.Next().String()+"/64")
			far.Output("ip", "route", "add", "default", "via", v4)
			far.Output("ip", "-6", "route", "add", "default", "via", v6)
			return far
		}
		uplink := join("eth0", "198.51.100.1", "2001:db8:c::1")
		node.Output("ip", "route", "add", "default", "via", "198.51.100.2")
		node.Output("ip", "-6", "route", "add", "default", "via", "2001:db8:c::2")
		pod := join("veth12", "10.244.1.1", "fd00:1::1")

		var p plan.Plan
		var all []lb.Frontend
		for vip, cluster := range map[netip.Addr]string{vip4: "10.96.0.7", vip6: "fd01::7"} {
			all = append(all, lb.Frontend{Address: vip, Protocol: "TCP", Port: 80, Access: lb.Access{Restricted: true},
				ClusterIP: netip.MustParseAddr(cluster)})
		}
		p.Filter.Frontends = frontends(all...)
		us := lb.Node{Name: "w1", Addresses: []netip.Addr{
			netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:c::1"),
		}}
		g := newTestGuard(false)
		must(t, g.set(p, lb.SetOf[netip.Addr](), us, readLinks(t)))
		defer func() { _ = g.Table.Remove() }()
		stranger := join("wg1", "10.99.0.1", "fd99::1")
		calico := join("cali34", "10.244.2.1", "fd00:2::1")
		later := join("veth56", "10.244.3.1", "fd00:3::1")
		expect := func(what string, from *nstest.NS, want bool) {
			t.Helper()
			for _, vip := range []netip.Addr{vip4, vip6} {
				if got := reaches(from, vip); got != want {
					t.Errorf("%s reaches %s: %v, want %v", what, vip, got, want)
				}
			}
		}
		expect("a pod", pod, true)
		expect("a host beyond the uplink", uplink, false)
		expect("a host beyond a new tunnel", stranger, false)
		expect("a pod behind a link that has the name of a pod's", calico, true)
		expect("a pod behind a new link", later, false)
		must(t, g.set(p, lb.SetOf[netip.Addr](), us, readLinks(t)))
		expect("a pod, once its link is known", later, true)
		expect("a host beyond a known tunnel", stranger, false)
	})
}

// reaches reports whether a host connects. An admitted host connects at once; the silence of a refused host has to
// last.
func reaches(from *nstest.NS, vip netip.Addr) bool {
	for _, wait := range []time.Duration{200 * time.Millisecond, 800 * time.Millisecond} {
		var c net.Conn
		var err error
		from.Do(func() { c, err = net.DialTimeout("tcp", netip.AddrPortFrom(vip, 80).String(), wait) })
		if err == nil {
			c.Close()
			return true
		}
	}
	return false
}
