package egress

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/filter"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// healTime is what any sink has to repair damage.
const healTime = 2 * time.Second

// sameTable compares listings but for the order of elements.
func sameTable(a, b string) bool {
	words := func(s string) map[string]int {
		out := map[string]int{}
		for _, word := range strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(" \t\n,{}", r) }) {
			out[word]++
		}
		return out
	}
	return maps.Equal(words(a), words(b))
}

// TestHeal: what others do to the tables is undone and counted, and connections go on.
func TestHeal(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.nodes[0]
		w.addBridge(n)
		p := w.addBridged(n, 2)
		nstest.Running(t, n.translator.Run)
		w.set()
		var open []net.Conn
		each(t, func(t *testing.T, network, to string) { open = append(open, p.dial(t, network, to, echoPort)) })
		others := n.Output("nft", "list", "table", "ip", "others") + n.Output("nft", "list", "table", "ip6", "others")
		whole := map[string]string{}
		for _, family := range []string{"ip", "ip6", "bridge"} {
			whole[family] = n.list(family)
		}
		for _, damage := range []string{
			"delete table ip holdfast-egress; delete table ip6 holdfast-egress; delete table bridge holdfast-egress",
			"flush ruleset",
			"flush set ip holdfast-egress rights",
			"flush map ip6 holdfast-egress translations",
			"flush set ip holdfast-egress inside",
			"flush set bridge holdfast-egress ports4",
			"flush chain ip6 holdfast-egress pass",
			"insert rule ip holdfast-egress forward drop",
			"add element ip holdfast-egress passes { 198.51.100.1 . 4096 : 192.0.2.99 }",
			"add table ip holdfast-egress { flags dormant; }",
		} {
			before := n.translator.repairs()
			n.Output("nft", damage)
			nstest.Until(t, healTime, damage+" is repaired", func() bool {
				same := n.translator.repairs() > before
				for family, want := range whole {
					same = same && sameTable(n.list(family), want)
				}
				return same
			})
			if damage == "flush ruleset" {
				n.Output("nft", others)
			}
		}
		for _, c := range open {
			w.translated(n, c)
		}
	})
}

// TestFlushed: connections that began while the tables were flushed are cut.
func TestFlushed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.nodes[0]
		p := w.addPod(n, 2)
		stop := nstest.Running(t, n.translator.Run)
		w.set()
		nstest.Until(t, patient, "the first sweeps are over", n.swept)
		stop()
		kept := p.dial(t, "tcp", partner4, echoPort)
		w.translated(n, kept)
		n.Output("nft", "delete table ip holdfast-egress")
		began, source := outward(t, p, "tcp", partner4)
		if source != n.address().v4 {
			t.Fatalf("the partner sees %s", source)
		}
		nstest.Running(t, n.translator.Run)
		nstest.Until(t, patient, "the connection is cut", func() bool {
			_, err := ask(began, patient)
			return err != nil && strings.Contains(err.Error(), "reset")
		})
		w.translated(n, kept)
	})
}

// TestAdopt: the next process takes the tables over as they are, and connections notice nothing.
func TestAdopt(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.nodes[0]
		w.addBridge(n)
		routed, bridged := w.addPod(n, 2), w.addBridged(n, 3)
		stop := nstest.Running(t, n.translator.Run)
		w.set()
		var open []net.Conn
		for _, p := range []*pod{routed, bridged} {
			each(t, func(t *testing.T, network, to string) { open = append(open, p.dial(t, network, to, echoPort)) })
		}
		check := func() {
			t.Helper()
			for _, c := range open {
				w.translated(n, c)
			}
		}
		check()
		stop()
		check() // without a process
		handles := func() (out string) {
			for _, family := range []string{"ip", "ip6", "bridge"} {
				out += n.Output("nft", "-s", "-a", "list", "table", family, tableName)
			}
			return out
		}
		before := handles()

		n.translator = New(Config{Log: testLog(t), Links: func() []lb.Interface { return w.links(n) }})
		stop = nstest.Running(t, n.translator.Run)
		w.set()
		check()
		if after := handles(); !sameTable(before, after) {
			t.Errorf("the tables were\n%s\nand are\n%s", before, after)
		}
		if got := n.translator.repairs(); got != 0 {
			t.Errorf("%d repairs", got)
		}

		// While there is no process, a pod ends and another one gets its address.
		stop()
		n.translator = New(Config{Log: testLog(t), Links: func() []lb.Interface { return w.links(n) }})
		w.removePod(n, bridged)
		next := w.addBridged(n, 3)
		next.uid = "next"
		nstest.Running(t, n.translator.Run)
		w.set()
		from := open[len(open)-1].LocalAddr().(*net.UDPAddr)
		c, err := next.tryFrom("udp", from.Port, partner6, echoPort, patient)
		must(t, err)
		defer c.Close()
		w.translated(n, c)
		for _, c := range open[:4] {
			w.translated(n, c)
		}
	})
}

// TestRemove: there are no tables without anything to do, and what is removed stays removed.
func TestRemove(t *testing.T) {
	with(t, func(t *testing.T, w *world, n *node, p *pod) {
		none := func() bool { return n.list("ip") == "none" && n.list("ip6") == "none" && n.list("bridge") == "none" }
		n.translator.Set(Desired{})
		if !none() {
			t.Error("there are tables without anything to do")
		}
		w.set()
		if none() {
			t.Error("there are no tables")
		}
		must(t, n.translator.Remove())
		time.Sleep(silent)
		if !none() {
			t.Error("the tables came back")
		}
		must(t, n.translator.Remove())
	})
}

// TestTry: the kernel accepts the tables, and nothing remains of the attempt.
func TestTry(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, f := range families() {
			must(t, Try(f.name))
		}
		must(t, TryBridges())
		if got := nstest.Self(t).Output("nft", "list", "tables"); got != "" {
			t.Errorf("left:\n%s", got)
		}
	})
}

// TestFilter: beside the packet filter, which answers undeclared ports with a reset, answers reach the pod: at the
// pod's own node, and at others. The declared port is served, and other ports are refused.
func TestFilter(t *testing.T) {
	with(t, func(t *testing.T, w *world, n *node, p *pod) {
		guarded := []lb.Range{{From: addr(vip4), To: addr(vip4)}, {From: addr(vip6), To: addr(vip6)}}
		frontends := map[netip.Addr]*[]lb.Frontend{}
		for _, vip := range vips.all() {
			frontends[addr(vip)] = &[]lb.Frontend{{
				Address: addr(vip), Protocol: "TCP", Port: 80, Service: lb.Key{Namespace: "ns", Name: "web"},
			}}
		}
		for _, node := range w.nodes {
			node.Do(func() {
				table := filter.New(testLog(t), func() {})
				must(t, table.Set(filter.Desired{
					Filter: lb.Filter{
						Guarded: guarded, Reset: guarded, Frontends: lb.MapOf(frontends),
						Pings: lb.SetOf(addr(vip4), addr(vip6)),
					},
					PodLinks: []string{"pod*"},
				}))
			})
		}
		for _, owner := range w.nodes {
			w.owner(owner)
			each(t, func(t *testing.T, network, to string) { w.translated(n, p.dial(t, network, to, echoPort)) })
			for _, to := range partners.all() {
				p.Output("ping", "-c", "1", "-W", "2", to)
				// A port of no slice, and a port of a slice without a connection.
				for _, port := range []int{4000, int(n.first()) + 77} {
					w.partner.Do(func() {
						_, err := net.DialTimeout("tcp", net.JoinHostPort(vips.of(to), fmt.Sprint(port)), patient)
						if err == nil || !strings.Contains(err.Error(), "refused") {
							t.Errorf("port %d of %s at node %d: %v", port, vips.of(to), owner.number, err)
						}
					})
				}
			}
		}
	})
}
