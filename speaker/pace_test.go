package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// reportOf returns a report on a Service, which may have such a condition already. One that is gone is to have none.
func reportOf(name string, exists bool) report {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if exists {
		s.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionAnnouncedL2, Status: metav1.ConditionUnknown}}
	}
	u := k8s.ServiceUpdate{Service: s, Conditions: []metav1.Condition{{Type: v1beta1.ConditionAnnouncedL2, Status: metav1.ConditionTrue}}}
	if name == "gone" {
		u.Conditions, u.RemoveConditions = nil, []string{v1beta1.ConditionAnnouncedL2}
	}
	return report{lb.Key{Name: name}, corrects(u)}
}

func (p *pace) overtakes(err error) (names []string, again time.Duration, failed error) {
	again, failed = p.each([]report{reportOf("new", false), reportOf("wrong", true), reportOf("gone", true)}, 4, func(u report) error {
		if names = append(names, u.service.Name); u.service.Name == "wrong" {
			return err
		}
		return nil
	})
	return names, again, failed
}

// TestCorrectionsFirst: conditions that are wrong are written first. A write that another one overtook is no failure, and is repeated soon.
func TestCorrectionsFirst(t *testing.T) {
	p := newPace(func() bool { return false }, func() bool { return false })
	names, again, err := p.overtakes(apierrors.NewConflict(schema.GroupResource{}, "wrong", nil))
	if diff := cmp.Diff([]string{"wrong", "gone", "new"}, names); diff != "" || again <= 0 || again >= slowWait || err != nil {
		t.Errorf("again after %v, error %v, order (-want +got):\n%s", again, err, diff)
	}
	if _, again, err := p.overtakes(errors.New("no")); again != 0 || err == nil {
		t.Errorf("a failure: again after %v, error %v", again, err)
	}
}

// TestPace: during a burst, or with many reports while announcements are being sent, all speakers together write two reports a second or
// fewer, and no more if they are kicked more often. A report that waits because it was refused takes no room. Afterwards the rest is written.
func TestPace(t *testing.T) {
	for _, tt := range []struct {
		name                     string
		burst, announcing        bool
		reports, speakers        int
		early, minLater, maxLate int
	}{
		{"burst, one speaker", true, false, 300, 1, 1, 19, 22},
		{"burst, four speakers", true, false, 300, 4, 1, 5, 6},
		{"burst, a thousand speakers", true, false, 300, 1000, 1, 1, 1},
		{"many are announced", false, true, 300, 4, 1, 5, 6},
		{"few are announced", false, true, fewReports, 4, fewReports, fewReports, fewReports},
	} {
		synctest.Test(t, func(t *testing.T) {
			slow := true
			p := newPace(func() bool { return slow && tt.burst }, func() bool { return slow && tt.announcing })
			reports := []report{reportOf("denied", true)}
			for i := range tt.reports {
				reports = append(reports, reportOf(fmt.Sprint(i), false))
			}
			written := 0
			look := func() time.Duration {
				again, err := p.each(slices.Clone(reports), tt.speakers, func(u report) error {
					if u.service.Name == "denied" {
						return apierrors.NewConflict(schema.GroupResource{}, "denied", nil) // or any error that says to wait
					}
					written++
					reports = slices.DeleteFunc(reports, func(r report) bool { return r.service.Name == u.service.Name })
					return nil
				})
				must(t, err)
				return again
			}
			if look(); written != tt.early {
				t.Errorf("%s: %d reports were written at once", tt.name, written)
			}
			for range 20 {
				time.Sleep(slowWait / 2)
				look()
			}
			if written < tt.minLater || written > tt.maxLate {
				t.Errorf("%s: one speaker wrote %d reports in 10 s", tt.name, written)
			}
			slow = false
			if look(); len(reports) != 1 {
				t.Errorf("%s: %d reports are left afterwards", tt.name, len(reports))
			}
		})
	}
}

// TestYields: a run waits while announcements are being sent, but not for a link that takes none, and the next ones count from their start. In a
// burst it waits for longer once no more reports may be written, but not beyond the burst.
func TestYields(t *testing.T) {
	announcing, at := true, time.Now()
	p := newPace(func() bool { return false }, func() bool { return announcing })
	for range 2 {
		waited := time.Duration(0)
		for wait := p.yields(at); wait > 0; wait = p.yields(at) {
			at, waited = at.Add(wait), waited+wait
		}
		if waited != yieldTime {
			t.Errorf("waited for %v, want %v", waited, yieldTime)
		}
		announcing = false
		if wait := p.yields(at); wait != 0 {
			t.Errorf("waits for %v though nothing is announced", wait)
		}
		announcing = true
	}
	synctest.Test(t, func(t *testing.T) {
		p, n := newPace(func() bool { return true }, func() bool { return false }), 0
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(slowWait / 2) {
			if p.yields(time.Now()) > 0 {
				continue
			}
			_, err := p.each(slices.Repeat([]report{reportOf("a", false)}, 100), 3, func(report) error { n++; return nil })
			must(t, err)
		}
		if n < 30 || n > 43 {
			t.Errorf("one of three speakers wrote %d reports in a minute of a burst", n)
		}
	})
	burst := true
	p = newPace(func() bool { return burst }, func() bool { return false })
	if wait := p.yields(time.Now()); wait != 0 {
		t.Errorf("the first run of a burst waits for %v", wait)
	}
	_, err := p.each([]report{reportOf("a", false), reportOf("b", false)}, 2, func(report) error { return nil })
	must(t, err)
	if wait, last := p.yields(time.Now()), p.yields(time.Now().Add(burstWait)); wait != slowWait || last != 0 {
		t.Errorf("with a report left in a burst it waits for %v, and after %v for %v", wait, burstWait, last)
	}
	if burst = false; p.yields(time.Now()) != 0 {
		t.Error("it waits though the burst is over")
	}
}

func TestLocalMember(t *testing.T) {
	mac := lb.MAC{2, 0, 0, 0, 0, 1}
	prefixes := func(p ...string) (out []netip.Prefix) {
		for _, s := range p {
			out = append(out, netip.MustParsePrefix(s))
		}
		return out
	}
	got := localMember([]lb.Interface{
		{Name: "lo", Up: true, Loopback: true, Prefixes: prefixes("127.0.0.1/8")},
		{Name: "eth0", Up: true, MAC: mac, Prefixes: prefixes("192.0.2.1/24", "fe80::1/64", "2001:db8::1/64")},
		{Name: "eth1", MAC: mac, Prefixes: prefixes("198.51.100.1/24")},
		{Name: "veth1", Up: true, MAC: mac, NoClients: true, Prefixes: prefixes("fe80::2/64")},
		{Name: "docker0", Up: true, MAC: mac, NoClients: true, Prefixes: prefixes("172.17.0.1/16")},
	}, []lb.Refusal{{Link: "docker0"}, {Link: "eth1"}}, map[string]bool{"docker0": true})
	addresses := func(a ...string) (out []netip.Addr) {
		for _, s := range a {
			out = append(out, netip.MustParseAddr(s))
		}
		return out
	}
	want := lb.Member{Links: []lb.Link{
		{Name: "eth0", MAC: mac, Default: true, Prefixes: prefixes("192.0.2.0/24", "2001:db8::/64"), Addresses: addresses("192.0.2.1", "fe80::1")},
		{Name: "docker0", MAC: mac, Refused: true, Silent: true, Prefixes: prefixes("172.17.0.0/16"), Addresses: addresses("172.17.0.1")},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	got.Stopping, got.Unfit = true, lb.Unfiltered
	var s lb.State
	metadata := map[string]lb.Member{"a": got, "b": {Partial: true, Links: want.Links}}
	c := newMemberFacts(metadata, nil)
	c.apply(&s)
	macs := c.macs
	if !macs[mac] || !s.Stopping["a"] || s.Stopping["b"] || len(s.Links["a"]) != 2 || s.Links["b"] != nil || s.Unfit["a"] != lb.Unfiltered {
		t.Errorf("macs %v, state %+v", macs, s)
	}
}

// TestNodeAddress: a node's address is an InternalIP that is on its links, in whatever order its cloud controller lists its
// addresses; others dial it as the address of its speaker's pod.
func TestNodeAddress(t *testing.T) {
	links := func(prefixes ...string) []lb.Interface {
		l := lb.Interface{Name: "eth0"}
		for _, p := range prefixes {
			l.Prefixes = append(l.Prefixes, netip.MustParsePrefix(p))
		}
		return []lb.Interface{l}
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1"}}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "w1"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.9"}, {Type: corev1.NodeExternalIP, Address: "2001:db8:9::9"},
		{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"},
	}
	s, _ := config.Compile(config.Objects{Nodes: []*corev1.Node{n}}, config.Options{})
	for _, tt := range []struct {
		name  string
		links []lb.Interface
		want  string
	}{
		{"behind address translation", links("10.0.0.1/24", "fd00::1/64"), "[10.0.0.1 fd00::1]"},
		{"with all addresses", links("203.0.113.9/24", "2001:db8:9::9/64", "10.0.0.1/24", "fd00::1/64"), "[10.0.0.1 fd00::1 203.0.113.9 2001:db8:9::9]"},
		{"with the external ones only", links("203.0.113.9/24"), "[203.0.113.9]"},
		{"with another's addresses", links("10.0.0.2/24"), "[]"},
	} {
		if got := fmt.Sprint(s.Nodes["w1"].Own(link.Addresses(tt.links))); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	if got := plan.ForNode("w1", s).RouterID.String(); got != "10.0.0.1" {
		t.Errorf("the router ID is %s", got)
	}
}

// TestNewcomers: addresses are new for a while after a Service got them, but none is when the speaker starts.
func TestNewcomers(t *testing.T) {
	now := time.Unix(1000, 0)
	service := func(name, uid string, addresses ...string) *lb.Service {
		s := &lb.Service{Key: lb.Key{Namespace: "ns", Name: name}, UID: uid}
		for _, a := range addresses {
			s.Addresses = append(s.Addresses, netip.MustParseAddr(a))
		}
		return s
	}
	old := service("old", "1", "192.0.2.1")
	burst := []*lb.Service{old}
	for i, a := 0, netip.MustParseAddr("10.0.0.0"); i < 2*mostNewcomers; i++ {
		burst, a = append(burst, service(fmt.Sprint(i), fmt.Sprint("b", i), a.String())), a.Next()
	}
	proxied := service("again", "4", "192.0.2.1")
	proxied.Proxied = true
	var n newcomers
	for _, tt := range []struct {
		after    time.Duration
		services []*lb.Service
		fresh    string
		again    time.Duration
	}{
		{0, []*lb.Service{old}, "map[]", 0},
		{time.Second, []*lb.Service{old, service("a", "2", "192.0.2.2", "2001:db8::2")}, "map[ns/a:[192.0.2.2 2001:db8::2]]", newcomerTime},
		{10 * time.Second, []*lb.Service{old, service("a", "2", "192.0.2.2", "2001:db8::2"), service("b", "3", "192.0.2.3")},
			"map[ns/a:[192.0.2.2 2001:db8::2] ns/b:[192.0.2.3]]", newcomerTime - 10*time.Second},
		{newcomerTime - 10*time.Second, []*lb.Service{old, service("a", "2", "192.0.2.2"), service("b", "3", "192.0.2.3")},
			"map[ns/b:[192.0.2.3]]", 10 * time.Second},
		{time.Second, []*lb.Service{old}, "map[]", 0},
		{time.Second, []*lb.Service{service("again", "4", "192.0.2.1")}, "map[ns/again:[192.0.2.1]]", newcomerTime},
		{newcomerTime, []*lb.Service{service("again", "4", "192.0.2.1")}, "map[]", 0},
		{time.Second, []*lb.Service{service("again", "4", "192.0.2.1"), service("shares", "5", "192.0.2.1")}, "map[ns/shares:[192.0.2.1]]", newcomerTime},
		{newcomerTime, []*lb.Service{proxied}, "map[]", 0},
		{time.Second, []*lb.Service{service("again", "4", "192.0.2.1")}, "map[ns/again:[192.0.2.1]]", newcomerTime},
		{newcomerTime, burst, fmt.Sprint(mostNewcomers), newcomerTime},
	} {
		now = now.Add(tt.after)
		fresh, again := n.see(tt.services, now)
		got := fmt.Sprint(fresh)
		if len(fresh) > 2 {
			got = fmt.Sprint(len(fresh))
		}
		if got != tt.fresh || again != tt.again {
			t.Errorf("at %s: %v again after %s, want %s after %s", now, fresh, again, tt.fresh, tt.again)
		}
	}
}

// TestStartsBehindTheFilter: without the filter nobody comes in before kube-proxy, which then alone knows source ranges.
func TestStartsBehindTheFilter(t *testing.T) {
	fresh := map[lb.Key][]netip.Addr{{Name: "a"}: {netip.MustParseAddr("192.0.2.1")}}
	for _, off := range []bool{true, false} { // turned off, and not yet in force
		w := &syncer{filter: newTestGuard(off)}
		if got := w.starts(fresh); got != nil {
			t.Errorf("filter off %v: %v", off, got)
		}
	}
}

// TestHeadStartIsServed: a Service has a head start when the kernel leads connections to all of its addresses to endpoints, and
// not because it is new: one with session affinity, of a burst, or that the kernel refused waits for kube-proxy.
func TestHeadStartIsServed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
		service := func(name string, addresses ...netip.Addr) *lb.Service {
			return &lb.Service{Key: lb.Key{Name: name}, Local: true, HealthPort: 31000, Backends: servedOn("w1"), Addresses: addresses}
		}
		led, half, affine := service("led", a, b), service("half", a, b), service("affine", a)
		in := inputs{fresh: map[lb.Key][]netip.Addr{led.Key: {a, b}, half.Key: {a, b}, affine.Key: {a}}}
		in.state.Services = []*lb.Service{led, half, affine}
		start := func(s *lb.Service, address netip.Addr, port uint16) lb.Start {
			return lb.Start{Service: s.Key, Address: address, Protocol: "TCP", Port: port, Endpoints: []netip.AddrPort{netip.AddrPortFrom(address, 8080)}}
		}
		w := &syncer{node: "w1", filter: newTestGuard(false), headstart: kubeproxy.NewHeadStart(slog.New(slog.DiscardHandler))}
		if err := w.filter.set(plan.Plan{}, lb.SetOf[netip.Addr](), lb.Node{Name: "w1"}, []lb.Interface{{Name: "eth0"}}); err != nil || !w.filter.inForce() {
			t.Fatalf("no filter: %v", err)
		}
		ports := w.healthPorts(in)
		expect := func(when string, want ...bool) {
			t.Helper()
			for i, s := range in.state.Services {
				if got := ports[s.Key].HeadStart(); got != want[i] {
					t.Errorf("%s: %s has a head start: %v, want %v", when, s.Key.Name, got, want[i])
				}
			}
		}
		expect("before the kernel has it", false, false, false)
		w.headstart.Set([]lb.Start{start(led, a, 80), start(led, b, 80), start(led, b, 81), start(half, a, 82)})
		expect("in the kernel", true, false, false)
		w.headstart.Set([]lb.Start{start(half, a, 82), start(half, b, 82)})
		expect("others in the kernel", false, true, false)
		w.headstart.Set(nil)
		expect("taken back", false, false, false)
	})
}

// TestUnassigned: only what a pool covers and no Service has may be a foreign machine's.
func TestUnassigned(t *testing.T) {
	a := netip.MustParseAddr
	p := plan.Plan{Filter: lb.Filter{
		Guarded: []lb.Range{{From: a("192.0.2.0"), To: a("192.0.2.9")}, {From: a("2001:db8::"), To: a("2001:db8::ff")}},
		Frontends: frontends(
			lb.Frontend{Address: a("192.0.2.3"), Protocol: "TCP", Port: 80}, lb.Frontend{Address: a("192.0.2.3"), Protocol: "TCP", Port: 443},
			lb.Frontend{Address: a("2001:db8::3"), Protocol: "UDP", Port: 53},
		),
	}}
	for text, want := range map[string]bool{
		"192.0.2.2": true, "192.0.2.3": false, "192.0.2.4": true, "192.0.2.10": false, "2001:db8::3": false, "2001:db8::4": true, "2001:db8:1::": false,
	} {
		if got := unassigned(p, a(text)); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}
