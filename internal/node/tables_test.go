package node

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/filter"
	"github.com/holdfast-lb/holdfast/internal/kernel"
	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/holdfast-lb/holdfast/internal/podnetwork"
	"golang.org/x/sys/unix"
)

// sessionless is what a node has that has no BGP session.
const sessionless = lb.SessionlessIPv4 | lb.SessionlessIPv6

func newTestGuard(off bool) *Filter {
	s := Settings{}
	s.Options.NoFilter = off
	return NewFilter(slog.New(slog.DiscardHandler), s, nil, func() {})
}

// TestGuardRefused: a Service that the filter closes is named, and costs no other one the filter.
func TestGuardRefused(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		bad, good := lb.Key{Namespace: "ns", Name: "bad"}, lb.Key{Namespace: "ns", Name: "good"}
		var p plan.Plan
		var all []lb.Frontend
		for _, s := range []struct {
			address string
			service lb.Key
		}{{"192.0.2.10", bad}, {"192.0.2.10", bad}, {"192.0.2.11", good}} {
			all = append(all, lb.Frontend{Address: netip.MustParseAddr(s.address), Protocol: "TCP", Port: 80, Service: s.service,
				Access: lb.Access{Restricted: true}})
		}
		p.Filter.Frontends = frontends(all...)
		none := lb.SetOf[netip.Addr]()
		w := newTestLoop(noLinks)
		g := w.sinks.Filter
		if err := g.set(p, none, lb.Node{Name: "w1"}, nil); err != nil || !g.inForce() || g.failed() {
			t.Fatalf("not in force: %v", err)
		}
		if diff := cmp.Diff([]lb.Key{bad}, slices.Collect(g.refused().Keys())); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
		problems := w.problems(nil)
		if len(problems) != 1 || problems[0].Reason != lb.RangesRefused || !strings.Contains(problems[0].Message, "ns/bad") ||
			strings.Contains(problems[0].Message, "ns/good") {
			t.Errorf("problems %v", problems)
		}
		p.Filter.Frontends = frontends(all[1:]...)
		if err := g.set(p, none, lb.Node{Name: "w1"}, nil); err != nil || g.refused().Len() > 0 || w.problems(nil) != nil {
			t.Errorf("afterwards: %v, refused %v", err, g.refused())
		}
	})
}

// The links that announcements name are known after each change of one.
func TestAnnouncing(t *testing.T) {
	g, address := newTestGuard(false), netip.MustParseAddr("192.0.2.1")
	on := func(links ...string) *lb.Announcement { return &lb.Announcement{Address: address, Links: links} }
	var last lb.Map[netip.Addr, *lb.Announcement]
	for _, tt := range []struct {
		next lb.Map[netip.Addr, *lb.Announcement]
		want []string
	}{
		{last, nil},
		{last.Put(address, on("a", "b")).Put(address.Next(), on("a")).Put(address.Prev(), on()), []string{"a", "b"}},
		{last.Put(address, on("c")).Put(address.Next(), on("a")), []string{"a", "c"}},
		{last.Put(address.Next(), on("a")), []string{"a"}},
		{last, nil},
	} {
		if got := slices.Sorted(slices.Values(g.announcing(tt.next))); !slices.Equal(got, tt.want) {
			t.Errorf("announcements name %v, want %v", got, tt.want)
		}
	}
}

// without returns a kernel that lacks features.
func without(t *testing.T, features ...kernel.Feature) *kernel.Monitor {
	t.Helper()
	var tries []kernel.Attempt
	for _, f := range features {
		tries = append(tries, kernel.Attempt{Feature: f, Try: func() error { return unix.EOPNOTSUPP }})
	}
	checked := make(chan struct{}, 1)
	m := kernel.New(slog.New(slog.DiscardHandler), tries, func() { checked <- struct{}{} })
	background(t, m.Run)
	<-checked
	return m
}

// TestPossible: the filter does without what the kernel lacks, and keeps all else.
func TestPossible(t *testing.T) {
	d := filter.Desired{Filter: lb.Filter{Frontends: frontends(lb.Frontend{Address: netip.MustParseAddr("192.0.2.3")})}}
	for _, lack := range []kernel.Feature{
		kernel.RelaysIPv4, kernel.InternalTraffic, kernel.ConnectionLimits, kernel.DropLogs, kernel.PodRoutes,
	} {
		got := possible(d, without(t, lack))
		if got.NoInternal != (lack == kernel.InternalTraffic) ||
			got.NoLimits != (lack == kernel.ConnectionLimits) ||
			got.NoLog != (lack == kernel.DropLogs) ||
			got.NoRoutes != (lack == kernel.PodRoutes) || !got.Frontends.Same(d.Frontends) {
			t.Errorf("without feature %d: %+v", lack, got)
		}
	}
}

// TestSelf: metadata and problems of a node while its kube-proxy has not served yet and its filter is never set.
func TestSelf(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		defer proxy.Close()
		kicked := make(chan struct{}, 1)
		w := newTestLoop(noLinks) // nothing is ever set
		w.sources.Boot = kubeproxy.New(kubeproxy.Config{Log: w.log, Livez: proxy.Listener.Addr().String(), Kick: func() {
			kicked <- struct{}{}
		}})
		w.sources.Kernel = without(t, kernel.PacketFilter, kernel.RelaysIPv6)
		w.sources.PodNetwork = podnetwork.New(podnetwork.Config{
			Log:    w.log,
			Remote: func() []netip.AddrPort { return []netip.AddrPort{netip.MustParseAddrPort("10.244.1.5:80")} },
			Kick:   func() { kicked <- struct{}{} },
		})
		reasons := func(links ...lb.Interface) (out []lb.Reason) {
			for _, p := range w.problems(links) {
				out = append(out, p.Reason)
			}
			return out
		}
		expect := func(when string, got []lb.Reason, want ...lb.Reason) {
			t.Helper()
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: -want +got\n%s", when, diff)
			}
		}
		background(t, w.sources.Boot.Run)
		<-w.sources.Boot.Looked()
		if got := w.self(inputs{stopping: true}); got.Unfit != lb.Booting|sessionless || !got.Stopping {
			t.Errorf("at first the metadata is %+v", got)
		}
		expect("at first", reasons(), lb.KubeProxyNotReady, lb.KernelFeatureMissing, lb.KernelFeatureMissing)
		nstest.Until(t, 10*time.Second, "the filter's grace to end",
			func() bool { return w.self(inputs{}).Unfit.Has(lb.Booting | lb.Unfiltered) })
		if got := w.problems(nil)[0].Message; !strings.HasSuffix(got, "see the log of its speaker") {
			t.Error(got)
		}
		w.sinks.Filter.kernel = w.sources.Kernel
		if got := w.problems(nil)[0].Message; !strings.Contains(got, "it needs") {
			t.Error(got)
		}
		expect("out of force", reasons(lb.Interface{Name: "eth0", Programs: []string{"XDP"}}), lb.FilterNotInForce,
			lb.FilterNotEnforceable, lb.KubeProxyNotReady, lb.KernelFeatureMissing, lb.KernelFeatureMissing)
		w.sinks.Filter = newTestGuard(true)
		expect("turned off", reasons(lb.Interface{Name: "cilium_host"}), lb.KubeProxyNotReady, lb.KernelFeatureMissing,
			lb.KernelFeatureMissing)
		node.Output("nft", "add table ip kube-proxy; add table ip6 kube-proxy")
		<-kicked
		if got := w.self(inputs{}); got.Unfit != sessionless {
			t.Errorf("when kube-proxy has served the metadata is %+v", got)
		}
		expect("when kube-proxy has served", reasons(), lb.KernelFeatureMissing, lb.KernelFeatureMissing)
		background(t, w.sources.PodNetwork.Run)
		<-kicked
		if got := w.self(inputs{}); got.Unfit != sessionless|lb.PodsUnreached {
			t.Errorf("without an answer of a pod the metadata is %+v", got)
		}
		expect("without an answer of a pod", reasons(), lb.NetworkUnavailable, lb.KernelFeatureMissing,
			lb.KernelFeatureMissing)
		node.SetUp("lo")
		node.AddAddress("lo", "10.244.1.5/32")
		<-kicked
		if got := w.self(inputs{}); got.Unfit != sessionless {
			t.Errorf("with an answer the metadata is %+v", got)
		}
		node.Output("nft", "flush ruleset")
		<-kicked
		if got := w.self(inputs{}); got.Unfit != sessionless|lb.RulesGone {
			t.Errorf("when the rules are gone the metadata is %+v", got)
		}
		expect("when the rules are gone", reasons(), lb.KubeProxyNotReady, lb.KernelFeatureMissing, lb.KernelFeatureMissing)
		node.Output("nft", "add table ip kube-proxy; add table ip6 kube-proxy")
		<-kicked
		if got := w.self(inputs{}); got.Unfit != sessionless {
			t.Errorf("when the rules are back the metadata is %+v", got)
		}
	})
}

// TestOtherDataPath: one setting turns off what is for kube-proxy. The other speakers learn that this one does not
// filter, and no user hears of a fault.
func TestOtherDataPath(t *testing.T) {
	s := Settings{Options: config.Options{OtherDataPath: true}}
	w := newTestLoop(noLinks)
	w.options = s.Options
	w.sinks.Filter = NewFilter(w.log, s, nil, func() {})
	w.sinks.Relays = NewRelays(w.log, s, noLinks, func() {})
	w.sources.Boot = kubeproxy.New(kubeproxy.Config{Log: w.log})
	if w.sinks.Filter.on || w.sinks.Relays.on || !w.sources.Boot.Served() {
		t.Errorf("filter %v, relays %v, served %v", w.sinks.Filter.on, w.sinks.Relays.on, w.sources.Boot.Served())
	}
	if got := w.self(inputs{}).Unfit; got != lb.Unfiltered|sessionless {
		t.Errorf("the metadata is %v", got)
	}
	if got := w.problems([]lb.Interface{{Name: "cilium_host"}}); got != nil {
		t.Errorf("problems %v", got)
	}
	in := inputs{state: lb.State{Services: []*lb.Service{{Local: true, Backends: servedOn("w1"), HealthPort: 31000}}}}
	if got := w.healthPorts(in); got != nil {
		t.Errorf("it asks a kube-proxy whether it serves %v", got)
	}
}

// TestFilterOwnedByOther: another program owns the filter's table (NFT_TABLE_F_OWNER), so that it cannot be written.
// The metadata says so after the grace, and says when the filter is in force again.
func TestFilterOwnedByOther(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		kicked := make(chan struct{}, 9)
		w := newTestLoop(noLinks)
		w.sinks.Filter = NewFilter(w.log, Settings{}, nil, func() { kicked <- struct{}{} })
		set := func() error { return w.sinks.Filter.set(plan.Plan{}, lb.SetOf[netip.Addr](), lb.Node{Name: "w1"}, nil) }
		must(t, set())
		background(t, w.sinks.Filter.Table.Run)
		holder := node.Command("nft", "-i")
		stdin, err := holder.StdinPipe()
		must(t, err)
		must(t, holder.Start())
		_, err = io.WriteString(stdin, "delete table inet holdfast; add table inet holdfast { flags owner; }\n")
		if err != nil {
			t.Fatal(err)
		}
		nstest.Until(t, 5*time.Second, "the table is held",
			func() bool { return node.Command("nft", "add", "chain", "inet", "holdfast", "x").Run() != nil })
		held := time.Now()
		<-kicked
		if got := w.self(inputs{}).Unfit; got != lb.Unfiltered|sessionless || time.Since(held) < filter.Grace/2 {
			t.Errorf("owned by another program for %v the metadata is %v", time.Since(held), got)
		}
		if err := set(); err == nil {
			t.Error("it can be set")
		}
		must(t, stdin.Close())
		_ = holder.Wait()
		<-kicked
		if got := w.self(inputs{}).Unfit; got != sessionless {
			t.Errorf("released, the metadata is %v", got)
		}
	})
}

// TestOutgoingLacks closes outgoing connections by settings, without the filter, and on a node that alone has not heard
// the API server for so long that its ports may be given to another node.
func TestOutgoingLacks(t *testing.T) {
	other := Settings{Options: config.Options{OtherDataPath: true}}
	for name, tt := range map[string]struct {
		settings               Settings
		isUnfiltered, isBehind bool
		age                    time.Duration
		want                   string
	}{
		"nothing":                       {Settings{Relay: true}, false, false, time.Hour, ""},
		"away for a short time":         {Settings{Relay: true}, false, true, time.Minute, ""},
		"away alone":                    {Settings{Relay: true}, false, true, 5 * time.Minute, "may belong to another node"},
		"no filter in force":            {Settings{Relay: true}, true, false, 0, "not in force"},
		"no relays":                     {Settings{}, false, false, 0, "speaker.relay is false"},
		"another program that delivers": {other, false, false, 0, "dataPath is Other"},
	} {
		t.Run(name, func(t *testing.T) {
			log := slog.New(slog.DiscardHandler)
			o := NewOutgoing(log, tt.settings, kernel.New(log, nil, func() {}), noLinks, func() {})
			got := o.lacks(!tt.isUnfiltered, tt.isBehind, tt.age)
			for _, f := range []lb.Family{lb.IPv4, lb.IPv6} {
				if (got[f] != "") != (tt.want != "") || !strings.Contains(got[f], tt.want) {
					t.Errorf("%s: %q, want %q", f, got[f], tt.want)
				}
			}
		})
	}
}
