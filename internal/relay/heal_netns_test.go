package relay

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/filter"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// healTime is what any sink has to repair damage.
const healTime = 2 * time.Second

// TestHeal: what others do to the tables is undone and counted, and connections go on.
func TestHeal(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		w.owner(w.former)
		open := w.connections(1)
		nstest.Running(t, w.relayer.Run)
		w.relayer.Set(w.desired())
		w.owner(w.node)
		whole4, whole6 := w.list("ip"), w.list("ip6")
		for _, damage := range []string{
			"delete table ip holdfast-relay; delete table ip6 holdfast-relay",
			"flush ruleset",
			"flush map ip holdfast-relay relays",
			"flush map ip6 holdfast-relay links",
			"flush set ip holdfast-relay used",
			"flush chain ip6 holdfast-relay connections",
			"insert rule ip holdfast-relay connections drop",
			"add element ip holdfast-relay relays { 198.51.100.1 : 192.0.2.99 }",
			"flush set ip6 holdfast-relay speakers",
			"add table ip holdfast-relay { flags dormant; }",
			"add chain ip6 holdfast-relay connections { policy drop; }",
		} {
			before := w.relayer.repairs()
			w.node.Output("nft", damage)
			nstest.Until(t, healTime, damage+" is repaired", func() bool {
				return w.relayer.repairs() > before && sameTable(w.list("ip"), whole4) && sameTable(w.list("ip6"), whole6)
			})
		}
		w.allAlive(open)
	})
}

// sameTable compares listings but for the order of members.
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

// TestAdopt: a speaker that is killed leaves relays that work, and the next one takes them over as they are.
func TestAdopt(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		w.owner(w.former)
		open := w.connections(5)
		stop := nstest.Running(t, w.relayer.Run)
		w.relayer.Set(w.desired())
		w.owner(w.node)
		stop()
		w.allAlive(open) // without a speaker
		handles := func() string {
			return w.node.Output("nft", "-s", "-a", "list", "chain", "ip", tableName, connectionsChain)
		}
		before, packets := handles(), w.packets()

		next := New(Config{Log: testLog(t), Links: w.links})
		want := map[netip.Addr]Inherited{addr(vip4): {Via: addr(former4)}, addr(vip6): {Via: w.linkLocal(w.former)}}
		if got := next.Inherited(); !maps.Equal(got, want) {
			t.Errorf("inherited %v, want %v", got, want)
		}
		stop = nstest.Running(t, next.Run)
		next.Set(w.desired())
		w.allAlive(open) // with another one
		w.relayer = next
		if got := handles(); got != before {
			t.Errorf("the rules were\n%s\nand are\n%s", before, got)
		}
		for i, n := range w.packets() {
			if n <= packets[i] {
				t.Errorf("%d packets were relayed before, %d since", packets[i], n)
			}
		}
		if n := next.repairs(); n != 0 {
			t.Errorf("%d repairs", n)
		}
		// A relay that is no longer desired is removed, even if an earlier process made it.
		stop()
		last := New(Config{Log: testLog(t), Links: w.links})
		nstest.Running(t, last.Run)
		last.Set(Desired{Speakers: w.speakers()})
		nstest.Until(t, patient, "what was left is gone", func() bool { return len(last.Inherited()) == 0 })
	})
}

// TestGoesBack: an address that goes back is relayed until the client knows: its connections have come a long way, and
// end nowhere. A speaker that stops meanwhile leaves nothing of that.
func TestGoesBack(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		w.owner(w.former)
		open := w.connections(5)
		stop := nstest.Running(t, w.relayer.Run)
		w.relayer.Set(w.desired())
		w.owner(w.node)
		w.relayer.Set(w.desired().changed(func(r *lb.Relay) { r.Until = time.Now().Add(time.Hour) }))
		for _, back := range []*nstest.NS{w.node, w.former} {
			w.owner(back)
			w.allAlive(open)
		}
		stop()
		if left := w.relayer.Inherited(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
}

// TestRemove: what is not relayed any more ends at once, and what is removed stays removed.
func TestRemove(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		nstest.Running(t, w.relayer.Run)
		w.relayer.Set(Desired{Speakers: w.speakers()})
		if w.list("ip") != "none" || w.list("ip6") != "none" {
			t.Errorf("nothing is relayed, and there are tables:\n%s%s", w.list("ip"), w.list("ip6"))
		}
		w.relayer.Set(Desired{Expect: true, Speakers: w.speakers()})
		nstest.Until(t, patient, "there are tables before they are needed", func() bool {
			return w.list("ip") != "none" && w.list("ip6") != "none"
		})
		w.owner(w.former)
		open := w.connections(3)
		w.relayer.Set(w.desired())
		w.owner(w.node)
		d := w.desired()
		d.Relays = d.Relays.Without(addr(vip6)) // the former owner of the IPv6 address died, say
		w.relayer.Set(d)
		nstest.Until(t, patient, "one family is relayed", func() bool { return len(w.relayer.Inherited()) == 1 })
		if n4, n6 := w.alive(open[vip4]), w.alive(open[vip6]); n4 != 3 || n6 != 0 {
			t.Errorf("%d and %d connections are alive, want 3 and 0", n4, n6)
		}
		w.relayer.Set(d.changed(func(r *lb.Relay) { r.Link = "eth9" }))
		nstest.Until(t, patient, "a link that is not there relays nothing", func() bool {
			return len(w.relayer.Inherited()) == 0
		})
		if s := w.relayer.State(); len(s.Relays) > 0 {
			t.Errorf("%+v", s)
		}
		w.relayer.Set(w.desired())
		if s := w.relayer.State(); len(s.Relays) != 2 {
			t.Errorf("%+v", s)
		}
		must(t, w.relayer.Remove())
		if w.list("ip") != "none" || w.list("ip6") != "none" {
			t.Errorf("there still are\n%s%s", w.list("ip"), w.list("ip6"))
		}
		if err := w.relayer.Remove(); err != nil {
			t.Errorf("once more: %v", err)
		}
	})
}

// TestFilter: behind the packet filter, connections of admitted sources are relayed, past limits on new connections and
// past the redirection to the ClusterIP. Connections of other sources are not relayed.
func TestFilter(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		const stranger4, stranger6 = "192.0.2.3", "2001:db8::3"
		w.client.AddAddress("eth0", stranger4+"/24", stranger6+"/64")
		w.owner(w.former)
		open := w.connections(10)
		strangers := map[string]net.Conn{vip4: w.dialFrom(stranger4, vip4), vip6: w.dialFrom(stranger6, vip6)}

		frontends := map[netip.Addr]*[]lb.Frontend{}
		for vip, own := range map[string]struct{ client, cluster string }{
			vip4: {client4 + "/32", "10.96.0.1"}, vip6: {client6 + "/128", "fd01::1"},
		} {
			frontends[addr(vip)] = &[]lb.Frontend{{
				Address: addr(vip), Protocol: "TCP", Port: port, Service: lb.Key{Namespace: "ns", Name: "web"},
				Access: lb.Access{
					Restricted: true, Allow: []netip.Prefix{netip.MustParsePrefix(own.client)}, RateLimit: 1, ConnectionLimit: 1,
				},
				ClusterIP: addr(own.cluster),
			}}
		}
		table := filter.New(testLog(t), func() {})
		must(t, table.Set(filter.Desired{
			Filter: lb.Filter{Frontends: lb.MapOf(frontends)}, PodLinks: []string{"pod*"},
			Relayed: lb.SetOf(addr(vip4), addr(vip6)),
		}))
		nstest.Running(t, w.relayer.Run)
		w.relayer.Set(w.desired())
		w.owner(w.node)
		w.allAlive(open)
		w.former.Output("nft", fmt.Sprintf(`
table inet seen {
	counter strangers { }
	chain c {
		type filter hook prerouting priority 0
		ip saddr %s counter name "strangers"
		ip6 saddr %s counter name "strangers"
	}
}`, stranger4, stranger6))
		for vip, c := range strangers {
			if err := talk(c, silent); !os.IsTimeout(err) {
				t.Errorf("%s: a source that may not come: %v, not silence", vip, err)
			}
		}
		if got := w.former.Output("nft", "list", "counters"); !strings.Contains(got, "packets 0 ") {
			t.Errorf("packets of a source that may not come are relayed:\n%s", got)
		}
		// Limits hold for new connections all the same: the second one within a second.
		for _, vip := range vips {
			w.dial(vip)
			if c, err := w.tryFrom(own[addr(vip).Is4()], vip, silent); err == nil {
				c.Close()
				t.Errorf("%s: two new connections within the limit of one", vip)
			}
		}
	})
}
