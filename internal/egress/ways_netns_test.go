package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// The nodes' own network, behind eth1, and what lies beyond its router: an address of the partner that is inside, one
// with a route of its own, and the partner's other addresses too.
const (
	core4, core6         = "10.0.0.1", "2001:db8:a::1"
	inside4, inside6     = "203.0.113.3", "2001:db8:f::3"
	specific4, specific6 = "203.0.113.4", "2001:db8:f::4"
)

var insides, specifics = pair{inside4, inside6}, pair{specific4, specific6}

// core returns the node's address in the nodes' network.
func (n *node) core() pair {
	return pair{fmt.Sprint("10.0.0.1", n.number), fmt.Sprintf("2001:db8:a::1%d", n.number)}
}

// addCore adds the nodes' own network, by which their default routes then lead. The LAN remains as the clients'
// network, with default routes of a higher metric.
func (w *world) addCore() {
	core, router := newHost(w.t), newHost(w.t)
	w.core = router
	core.Bridge("br0")
	nstest.Veth(w.t, router, "eth0", core, "router")
	core.Enslave("router", "br0")
	router.AddAddress("eth0", core4+"/24", core6+"/64")
	nstest.Veth(w.t, router, "outer", w.partner, "eth1")
	router.AddAddress("outer", "203.0.114.1/24", "2001:db8:e::1/64")
	w.partner.AddAddress("eth1", "203.0.114.2/24", "2001:db8:e::2/64")
	w.partner.AddAddress("eth0", inside4+"/32", specific4+"/32")
	for _, a := range []string{inside6, specific6} {
		// The partner sends from it only if it is asked there.
		w.partner.Output("ip", "address", "add", a+"/128", "dev", "eth0", "nodad", "preferred_lft", "0")
	}
	w.partner.Output("ip", "route", "add", "10.0.0.0/24", "via", "203.0.114.1")
	w.partner.Output("ip", "route", "add", "2001:db8:a::/64", "via", "2001:db8:e::1")
	router.Output("ip", "route", "add", "203.0.113.0/24", "via", "203.0.114.2")
	router.Output("ip", "route", "add", "2001:db8:f::/64", "via", "2001:db8:e::2")
	forward(router)

	for _, n := range w.nodes {
		name := fmt.Sprint("node", n.number)
		nstest.Veth(w.t, n.NS, "eth1", core, name)
		core.Enslave(name, "br0")
		n.AddAddress("eth1", n.core().v4+"/24", n.core().v6+"/64")
		n.Sysctl("ipv4/conf/eth0/rp_filter", "2") // else answers are dropped
		for _, gateways := range []pair{{router4, core4}, {router6, core6}} {
			n.Output("ip", "route", "replace", "default", "via", gateways.v6, "dev", "eth1", "metric", "100")
			n.Output("ip", "route", "del", "default", "via", gateways.v4, "dev", "eth0")
			n.Output("ip", "route", "add", "default", "via", gateways.v4, "dev", "eth0", "metric", "2000")
		}
	}
	w.ways = []lb.EgressWay{wayBy("eth0", router4), wayBy("eth0", router6)}
	w.inside = []netip.Prefix{prefix(inside4 + "/32"), prefix(inside6 + "/128")}
}

// wayBy returns a way by gateways on a link.
func wayBy(link string, gateways ...string) lb.EgressWay {
	w := lb.EgressWay{Link: link, Way: lb.Way{Family: lb.FamilyOf(addr(gateways[0]))}}
	for _, g := range gateways {
		w.Gateways = append(w.Gateways, addr(g))
	}
	return w
}

// withCore runs a test in a world with two networks, whose first node has a pod.
func withCore(t *testing.T, f func(t *testing.T, w *world, n *node, p *pod)) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.addCore()
		n := w.nodes[0]
		p := w.addPod(n, 2)
		nstest.Running(t, n.translator.Run)
		w.set()
		if faults := n.translator.Faults(); len(faults) > 0 {
			t.Fatal(faults)
		}
		f(t, w, n, p)
	})
}

// routed returns the package's rules and routes of both families.
func (n *node) routed() (out string) {
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(n.Output("ip", family, "rule", "list")) {
			if strings.HasPrefix(line, fmt.Sprint(insidePriority)) || strings.HasPrefix(line, fmt.Sprint(wayPriority)) {
				out += line
			}
		}
		for table := range maxWays {
			list, _ := n.Command("ip", family, "route", "list", "table", fmt.Sprint(firstTable+table)).Output()
			out += string(list)
		}
	}
	return out
}

// TestWays: on nodes with two networks connections leave by the link of the address, whoever gets the answers, and all
// else takes the main routing table.
func TestWays(t *testing.T) {
	withCore(t, func(t *testing.T, w *world, n *node, p *pod) {
		t.Log(n.routed())
		n.Output("nft", `add table inet spy; add chain inet spy seen { type filter hook forward priority 0; };
			add rule inet spy seen meta mark and 0x0c != 0 counter`)
		defer func() {
			if seen := n.Output("nft", "list", "table", "inet", "spy"); !strings.Contains(seen, "packets 0 ") {
				t.Errorf("others see marks:\n%s", seen)
			}
		}()
		for _, owner := range w.nodes {
			w.owner(owner)
			each(t, func(t *testing.T, network, to string) { w.translated(n, p.dial(t, network, to, echoPort)) })
			for _, to := range partners.all() {
				p.Output("ping", "-c", "1", "-W", "2", to)
			}
		}

		for _, to := range insides.all() {
			_, source := outward(t, p, "tcp", to)
			if source != n.core().of(to) {
				t.Errorf("%s, which is inside, sees %s", to, source)
			}
		}
		for family, cluster := range map[string]pair{"ip": {"10.96.0.9", partner4}, "ip6": {"fd01::9", partner6}} {
			n.Output("nft", fmt.Sprintf("add rule %[1]s others services %[1]s daddr %[2]s tcp dport %[3]d dnat to %[4]s",
				family, cluster.v4, echoPort, cluster.v6))
			_, source := outward(t, p, "tcp", cluster.v4)
			if source != n.core().of(cluster.v4) {
				t.Errorf("%s, behind a Service, sees %s", cluster.v6, source)
			}
		}

		// A specific route by another link holds.
		n.Output("ip", "route", "add", specific4, "via", core4)
		n.Output("ip", "route", "add", specific6, "via", core6)
		for _, to := range specifics.all() {
			if !refused(p, to) {
				t.Errorf("%s leaves, though its route leads by another link", to)
			}
		}

		// A pod that no Service selects.
		other := w.addPod(n, 3)
		for _, to := range partners.all() {
			_, source := outward(t, other, "tcp", to)
			if source != n.core().of(to) {
				t.Errorf("another pod leaves as %s", source)
			}
		}
	})
}

// TestWaysMove: connections survive moves of the address on nodes with two networks.
func TestWaysMove(t *testing.T) {
	withCore(t, func(t *testing.T, w *world, n *node, p *pod) {
		var open []net.Conn
		each(t, func(t *testing.T, network, to string) { open = append(open, p.dial(t, network, to, echoPort)) })
		for _, i := range []int{1, 0, 2} {
			w.owner(w.nodes[i])
			for _, c := range open {
				w.translated(n, c)
			}
		}

		// For a moment no node announces the address.
		d := w.desired(n)
		for i := range d.Sources {
			d.Sources[i].Link, d.Sources[i].Closed = "", "no node announces it"
		}
		n.translator.Set(d)
		for _, c := range open {
			w.translated(n, c)
		}
		for _, to := range partners.all() {
			if !refused(p, to) {
				t.Errorf("%s: not refused", to)
			}
		}
	})
}

// TestWaysReuse: the next pod with the address of a pod leaves by the default route.
func TestWaysReuse(t *testing.T) {
	withCore(t, func(t *testing.T, w *world, n *node, p *pod) {
		w.removePod(n, p)
		next := w.addPod(n, 2)
		pods := n.pods
		n.pods = nil
		w.set()
		n.pods = pods
		for _, to := range partners.all() {
			_, source := outward(t, next, "tcp", to)
			if source != n.core().of(to) {
				t.Errorf("%s: the next pod leaves as %s", to, source)
			}
		}
		if left := n.routed(); left != "" {
			t.Errorf("left:\n%s", left)
		}
	})
}

// TestWaysWithout: where the link has no default route, new connections are refused at once unless a specific route
// leads over it, and older ones leave by no other link. They go on when there is one. Whether the other link may
// announce does not matter.
func TestWaysWithout(t *testing.T) {
	for _, excluded := range []string{"none", "eth1"} {
		t.Run(excluded, func(t *testing.T) { testWaysWithout(t, excluded) })
	}
}

func testWaysWithout(t *testing.T, excluded string) {
	withCore(t, func(t *testing.T, w *world, n *node, p *pod) {
		w.excluded = excluded
		w.set()
		var open []net.Conn
		each(t, func(t *testing.T, network, to string) { open = append(open, p.dial(t, network, to, echoPort)) })
		for _, c := range open {
			w.translated(n, c)
		}
		n.Output("nft", `add table ip spy; add chain ip spy out { type filter hook postrouting priority 300; };
			add rule ip spy out oifname eth1 ip daddr `+partner4+` counter;
			add table ip6 spy; add chain ip6 spy out { type filter hook postrouting priority 300; };
			add rule ip6 spy out oifname eth1 ip6 daddr `+partner6+" counter")

		ways := w.ways
		w.ways = nil
		w.set()
		for _, to := range partners.all() {
			start := time.Now()
			if !refused(p, to) || time.Since(start) > time.Second {
				t.Errorf("%s: not refused at once", to)
			}
		}
		for _, c := range open {
			_, err := ask(c, silent)
			if err == nil {
				t.Errorf("%s answers", c.RemoteAddr())
			}
		}
		for _, family := range []string{"ip", "ip6"} {
			if seen := n.Output("nft", "list", "table", family, "spy"); !strings.Contains(seen, "packets 0 ") {
				t.Errorf("packets left by the other link:\n%s", seen)
			}
		}

		for to, link := range map[string]string{specific4: router4, specific6: router6} {
			n.Output("ip", "route", "add", to, "via", link)
			w.translated(n, p.dial(t, "tcp", to, echoPort))
		}

		w.ways = ways
		w.set()
		for _, c := range open {
			nstest.Until(t, patient, "the connection to "+c.RemoteAddr().String()+" goes on", func() bool {
				_, err := ask(c, silent)
				return err == nil
			})
		}
	})
}

// TestWaysHeal: what others do to rules and tables is undone and counted, and connections go on.
func TestWaysHeal(t *testing.T) {
	withCore(t, func(t *testing.T, w *world, n *node, p *pod) {
		var open []net.Conn
		each(t, func(t *testing.T, network, to string) { open = append(open, p.dial(t, network, to, echoPort)) })
		whole := n.routed()
		if strings.Count(whole, "\n") != 6 {
			t.Fatalf("rules and routes are\n%s", whole)
		}
		restore := "; ip -4 rule add pref 32766 table main; ip -6 rule add pref 32766 table main"
		for _, damage := range []string{
			"ip -4 rule flush; ip -6 rule flush" + restore,
			fmt.Sprintf("ip rule del pref %d", wayPriority),
			fmt.Sprintf("ip -6 rule del pref %d", insidePriority),
			fmt.Sprintf("ip route flush table %d; ip -6 route flush table %d", firstTable, firstTable),
			fmt.Sprintf("ip route replace default via 192.0.2.77 metric 1 proto %d table %d", routeProtocol, firstTable),
			fmt.Sprintf("ip route add blackhole 203.0.113.0/24 proto %d table %d", routeProtocol, firstTable),
			fmt.Sprintf("ip rule add fwmark 7 pref 40 protocol %d table main", routeProtocol),
		} {
			before := n.translator.repairs()
			n.Output("sh", "-c", damage)
			nstest.Until(t, healTime, damage+" is repaired", func() bool {
				return n.translator.repairs() > before && n.routed() == whole
			})
		}
		if rules := n.Output("ip", "rule"); strings.Contains(rules, "40:") {
			t.Errorf("rules are\n%s", rules)
		}
		for _, c := range open {
			w.translated(n, c)
		}

		n.SetDown("eth0")
		n.SetUp("eth0")
		n.AddAddress("eth0", n.address().v6+"/64")
		nstest.Until(t, patient, "the routes are back", func() bool { return n.routed() == whole })
	})
}

// TestWaysAdopt: the next process takes rules and tables over, and cleans what it does not need.
func TestWaysAdopt(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.addCore()
		n := w.nodes[0]
		p := w.addPod(n, 2)
		w.set()
		// As after a first way that has gone.
		second := waySlots{0, n.Link("eth0").Attrs().Index}
		n.translator.ways = map[lb.Family]waySlots{lb.IPv4: second, lb.IPv6: second}
		n.translator.resync()
		before := n.routed()
		if !strings.Contains(before, "0x8/0xc lookup 7302") || strings.Contains(before, "7301") {
			t.Fatalf("rules and routes are\n%s", before)
		}
		open := p.dial(t, "tcp", partner4, echoPort)
		w.translated(n, open)

		fresh := func() *Translator {
			return New(Config{Log: testLog(t), Links: func() []lb.Interface { return w.links(n) }})
		}
		// The next process begins while no node announces the address.
		n.translator = fresh()
		d := w.desired(n)
		for i := range d.Sources {
			d.Sources[i].Link, d.Sources[i].Closed = "", "no node announces it"
		}
		n.translator.Set(d)
		w.translated(n, open)
		w.set()
		if after := n.routed(); after != before || n.translator.repairs() > 0 {
			t.Errorf("were\n%s\nare\n%s", before, after)
		}
		w.translated(n, open)

		n.translator = fresh()
		n.translator.Set(Desired{})
		if left := n.routed(); left != "" {
			t.Errorf("left without sources:\n%s", left)
		}
		w.set()
		must(t, fresh().Remove())
		if left := n.routed(); left != "" {
			t.Errorf("left by Remove:\n%s", left)
		}
	})
}

// TestWaysForeign: rules and tables of another program stay, and pods that would need them are closed.
func TestWaysForeign(t *testing.T) {
	for name, tt := range map[string]struct{ add, del, fault string }{
		"a route": {
			"ip route add 198.51.100.0/24 via 10.0.0.1 table 7301", "ip route del 198.51.100.0/24 table 7301",
			"another program has a route in table 7301",
		},
		"a rule": {
			"ip rule add from 198.51.100.0/24 pref 32701 table 99", "ip rule del pref 32701",
			"another program has a routing rule of priority 32701",
		},
		"a rule that comes first": {
			"ip rule add pref 998 table main suppress_prefixlength 0; ip rule add pref 999 table 99;" +
				" ip route add default via 10.0.0.1 table 99",
			"ip rule del pref 999",
			"a routing rule of another program leads over another link than eth0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				w := newWorld(t)
				w.addCore()
				n := w.nodes[0]
				p := w.addPod(n, 2)
				n.Output("sh", "-c", tt.add)
				foreign := n.routed()
				nstest.Running(t, n.translator.Run)
				w.set()
				if fault := n.translator.Faults()[addr(p.v4)]; fault != tt.fault {
					t.Errorf("fault %q", fault)
				}
				if !refused(p, partner4) || refused(p, partner6) {
					t.Error("IPv4 is open, or IPv6 is refused")
				}
				if after := n.routed(); !strings.Contains(after, strings.TrimSpace(foreign)) {
					t.Errorf("was\n%s\nis\n%s", foreign, after)
				}
				n.Output("sh", "-c", tt.del)
				nstest.Until(t, patient, "the fault is over", func() bool { return len(n.translator.Faults()) == 0 })
				w.translated(n, p.dial(t, "tcp", partner4, echoPort))
			})
		})
	}
}

// TestWaysMany: several gateways of a link share its connections, and a route's MTU holds.
func TestWaysMany(t *testing.T) {
	withCore(t, func(t *testing.T, w *world, n *node, p *pod) {
		w.router.AddAddress("eth0", "192.0.2.2/24", "2001:db8::2/64")
		w.ways = []lb.EgressWay{wayBy("eth0", router4, "192.0.2.2"), wayBy("eth0", router6, "2001:db8::2")}
		for i := range w.ways {
			w.ways[i].MTU = 1400
		}
		w.set()
		text := n.routed()
		t.Log(text)
		if strings.Count(text, "nexthop") != 4 || strings.Count(text, "mtu 1400") < 2 {
			t.Errorf("rules and routes are\n%s", text)
		}
		each(t, func(t *testing.T, network, to string) { w.translated(n, p.dial(t, network, to, echoPort)) })
		before := n.translator.repairs()
		n.translator.resync()
		if n.translator.repairs() != before {
			t.Error("the next look repairs what is right")
		}
	})
}

// TestWaysRefused: where the kernel refuses rules, pods that would need them are closed.
func TestWaysRefused(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		refusal := errors.New("operation not supported")
		want := (&model{
			desired: &Desired{Egress: lb.Egress{Ways: []lb.EgressWay{wayBy("eth0", router4)}}},
			uplinks: map[string]int{"eth0": 7},
			ways:    map[lb.Family]waySlots{lb.IPv4: {7}},
		}).routes()
		faults := want.failed(refusal)
		if got := faults[wayKey{lb.IPv4, 1}]; !strings.Contains(got, refusal.Error()) || len(faults) != 1 {
			t.Errorf("faults %v", faults)
		}
		// The link does not exist.
		faults = (&routing{log: testLog(t)}).set(want)
		if got := faults[wayKey{lb.IPv4, 1}]; !strings.Contains(got, "cannot route") {
			t.Errorf("faults %v", faults)
		}
		must(t, (&routing{log: testLog(t), isUsed: true}).remove())
		rules, err := netlink.RuleList(netlink.FAMILY_ALL)
		must(t, err)
		for _, r := range rules {
			if r.Protocol == routeProtocol {
				t.Errorf("left: %v", r)
			}
		}
	})
}
