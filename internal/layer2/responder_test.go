package layer2

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/prometheus/client_golang/prometheus"
)

func TestState(t *testing.T) {
	addr := netip.MustParseAddr
	pods := lb.Interface{Index: 4, Name: "veth4", MAC: otherMAC, Up: true, NoClients: true}
	runPlay(t, nil, func(p *play) {
		p.Set(Desired{Announcements: announcing([]lb.Announcement{
			{Address: v6},
			{Address: v4, Links: []string{"veth4", "eth5"}},
			{Address: addr("192.0.2.101"), Links: []string{"eth1", "eth0", "eth1"}},
			{Address: addr("192.0.2.102"), Links: []string{"nowhere"}},
			{Address: addr("192.0.2.103")},
			{}, {Address: addr("0.0.0.0")}, {Address: addr("ff02::1")},
		})})
		synctest.Wait()
		want := lb.Layer2{
			Links: []string{"eth0", "eth1", "veth4"},
			Addresses: []lb.AddressState{
				{Address: v4, Links: []string{"veth4"}, Phase: "announced", Answered: true},
				{Address: addr("192.0.2.101"), Links: []string{"eth0", "eth1"}, Phase: "announced", Answered: true},
				{Address: addr("192.0.2.102"), Phase: "announced"},
				{Address: addr("192.0.2.103"), Links: []string{"eth0", "eth1"}, Phase: "announced", Answered: true},
				{Address: v6, Links: []string{"eth0", "eth1"}, Phase: "announced", Answered: true},
			},
		}
		if diff := cmp.Diff(want, p.State(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		group := func(index int) groupMembership { return groupMembership{index, addr("ff02::1:ff00:100")} }
		wantGroups := map[string]bool{group(2).String(): true, group(3).String(): true}
		if diff := cmp.Diff(wantGroups, joined(p.Responder)); diff != "" {
			t.Errorf("groups (-want +got):\n%s", diff)
		}
	}, eth1, pods, lb.Interface{Index: 5, Name: "eth5"})
}

// TestNoLinkYet: an address stays pending until its links were read; then Changed is
// called.
func TestNoLinkYet(t *testing.T) {
	first := Desired{Announcements: announcing([]lb.Announcement{{Address: v4, Links: []string{"eth0"}}})}
	for _, tt := range []struct {
		name   string
		before Desired
		addr   lb.Announcement
		opened bool
	}{
		{"the first port", Desired{}, lb.Announcement{Address: v4, Links: []string{"veth1"}}, true},
		{"a further port", first, lb.Announcement{Address: v4, Links: []string{"veth1"}}, true},
		{"no such link", Desired{}, lb.Announcement{Address: v4, Links: []string{"eth9"}}, false},
		{"no such link beside a port", first, lb.Announcement{Address: v4, Links: []string{"eth9"}}, false},
	} {
		lan := newFakeLAN(eth0, lb.Interface{Index: 9, Name: "veth1", MAC: otherMAC, Up: true, NoClients: true})
		r := lan.responder()
		calls := 0
		r.config.Changed = func() { calls++ }
		k := newPortKeeper(r)
		r.Set(tt.before)
		k.sync()
		calls = 0
		r.Set(Desired{Announcements: announcing([]lb.Announcement{tt.addr})})
		if a := r.State().Addresses[0]; !a.Pending || calls != 0 {
			t.Errorf("%s: %+v, calls %d times", tt.name, a, calls)
		}
		k.sync()
		if a := r.State().Addresses[0]; a.Pending || a.Answered != tt.opened || calls != 1 {
			t.Errorf("%s, then: %+v, calls %d times", tt.name, a, calls)
		}
		k.sync()
		if calls != 1 {
			t.Errorf("%s, while nothing happens: calls %d times", tt.name, calls)
		}
		k.close()
	}
}

// joined has the groups of our addresses.
func joined(r *Responder) map[string]bool {
	got := make(map[string]bool)
	for m := range *r.groups.desired.Load() {
		got[m.String()] = true
	}
	return got
}

// otherKind is a metric that another sink registers beside ours.
type otherKind struct{}

func (otherKind) desc() *prometheus.Desc {
	return prometheus.NewDesc("holdfast_repairs_total", "Repairs of drift, by kind.", nil,
		prometheus.Labels{"kind": "other"})
}

func (o otherKind) Describe(ch chan<- *prometheus.Desc) { ch <- o.desc() }

func (o otherKind) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(o.desc(), prometheus.CounterValue, 7)
}

func TestMetrics(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		p.settle(Desired{Announcements: announcing(ourAnnouncements)}, announced)
		p.lan.conn("eth0", p.protocols[0]).in <- arpRequest(v4, nil)
		p.lan.conn("eth0", p.protocols[0]).in <- arpRequest(foreign4, nil)
		p.lan.conn("eth0", p.protocols[1]).in <- ns(v6, func(s *solicitation) { s.hopLimit = 1 })
		synctest.Wait()
		want := `holdfast_l2_announced_addresses{family="IPv4"} 1
holdfast_l2_announced_addresses{family="IPv6"} 1
holdfast_l2_announcements_total{family="IPv4",result="sent"} 7
holdfast_l2_announcements_total{family="IPv6",result="sent"} 7
holdfast_l2_answers_total{family="IPv4",result="sent"} 1
holdfast_l2_probes_total{family="IPv4",result="sent"} 1
holdfast_l2_probes_total{family="IPv6",result="sent"} 1
holdfast_l2_requests_total{family="IPv4",result="answered"} 1
holdfast_l2_requests_total{family="IPv4",result="notOurs"} 1
holdfast_l2_requests_total{family="IPv6",result="badHopLimit"} 1
holdfast_l2_takeovers_total{family="IPv4"} 1
holdfast_l2_takeovers_total{family="IPv6"} 1
holdfast_repairs_total{kind="other"} 7
`
		if diff := cmp.Diff(want, scrape(t, p, otherKind{})); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// scrape returns all nonzero series, sorted.
func scrape(t *testing.T, collectors ...prometheus.Collector) string {
	registry := prometheus.NewPedanticRegistry()
	for _, c := range collectors {
		must(t, registry.Register(c))
	}
	families, err := registry.Gather()
	must(t, err)
	var b strings.Builder
	for _, f := range families {
		for _, m := range f.GetMetric() {
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if value == 0 {
				continue
			}
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			fmt.Fprintf(&b, "%s{%s} %v\n", f.GetName(), strings.Join(labels, ","), value)
		}
	}
	return b.String()
}

func manyAddresses(n int) []lb.Announcement {
	var set []lb.Announcement
	a4, a6 := netip.MustParseAddr("10.0.0.0"), netip.MustParseAddr("2001:db8:1::")
	for range n / 2 {
		a4, a6 = a4.Next(), a6.Next()
		set = append(set, lb.Announcement{Address: a4}, lb.Announcement{Address: a6})
	}
	return set
}

// BenchmarkLookup is the decision about a frame with 10,000 announced addresses: the
// cost of a foreign question and of one for our address.
//
// Trap: a walk through all Services for each frame (MetalLB: 328 µs at 10,000).
func BenchmarkLookup(b *testing.B) {
	p := testPort()
	d := Desired{Announcements: announcing(append(manyAddresses(10_000), ourAnnouncements...))}
	p.r.table.Store(newTable(d, Desired{}, &addressTable{}, false, p.r.system.clock()))
	b.Run("table", func(b *testing.B) {
		l := p.link.Load()
		for b.Loop() {
			if t := p.r.table.Load(); t.entryOn(v6, &l.Interface) == nil || t.entryOn(foreign4, &l.Interface) != nil {
				b.Fatal("wrong")
			}
		}
	})
	for name, tt := range map[string]struct {
		frames [familyCount][]byte
		want   frameResult
	}{
		"foreign": {[familyCount][]byte{arpRequest(foreign4, nil), ns(foreign6, nil)}, notOurs},
		"ours":    {[familyCount][]byte{arpRequest(v4, nil), ns(v6, nil)}, answered},
	} {
		for i, frame := range tt.frames {
			proto := p.r.protocols[i]
			b.Run(name+proto.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, out := p.answer(proto, frame); out != tt.want {
						b.Fatal(out)
					}
				}
			})
		}
	}
}

// TestDrainedThenPoweredOff: a node with 10,000 addresses is drained, and powered off as soon as it has handed over the
// last of them. Speakers do not hear each other's frames, as on a private VLAN, and ask as the speaker does. A
// neighbour that asks nothing of its own accord then knows the new owner of each address.
func TestDrainedThenPoweredOff(t *testing.T) {
	const addresses, perQuestion, every = 10_000, 2048, 200 * time.Millisecond
	other := eth0
	other.MAC = otherMAC
	synctest.Test(t, func(t *testing.T) {
		there, here := newFakeLAN(eth0), newFakeLAN(other)
		former, owner := there.responder(), here.responder()
		defer run(t, former)()
		defer run(t, owner)()
		var moved []lb.Announcement
		var yield []netip.Addr
		for a4, a6 := netip.MustParseAddr("10.1.0.0"), v6; len(moved) < addresses; a4, a6 = a4.Next(), a6.Next() {
			moved = append(moved, lb.Announcement{Address: a4}, lb.Announcement{Address: a6})
			yield = append(yield, a4, a6)
		}
		slices.SortFunc(yield, netip.Addr.Compare)
		speakers := map[lb.MAC]bool{ourMAC: true, otherMAC: true}
		former.Set(Desired{Announcements: announcing(moved), Speakers: speakers})
		synctest.Wait()
		owner.Set(Desired{Announcements: announcing(moved), Speakers: speakers})
		former.Set(Desired{Yield: lb.SetOf(yield...), Speakers: speakers})
		for turns := 0; ; turns++ {
			left := former.HandingOver()
			if len(left) == 0 {
				t.Logf("handed over after %v", time.Duration(turns)*every)
				break
			}
			left = left[:min(perQuestion, len(left))]
			var owned []netip.Addr
			for i, owns := range owner.Owns(left, true) {
				if owns {
					owned = append(owned, left[i])
				}
			}
			former.EndHandovers(owned)
			time.Sleep(every)
		}
		known := make(map[netip.Addr]bool, addresses)
		for len(here.out) > 0 {
			frame := <-here.out
			proto := owner.protocols[0]
			if frame[offEtherType] == 0x86 {
				proto = owner.protocols[1]
			}
			if m, out := proto.parse(frame, ourMAC); out == answered && m.mac == otherMAC {
				known[m.claimed] = true
			}
		}
		if unheard := former.counters.handovers[handoverUnheard].Load(); len(known) != addresses || unheard != 0 {
			t.Errorf("the neighbour knows %d new owners of %d; %d addresses were left without one", len(known), addresses,
				unheard)
		}
	})
}
