package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/haproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	proxyproto "github.com/pires/go-proxyproto"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// fixed is a cluster without objects: the tests say what is wanted.
type fixed struct{}

func (fixed) Synced() bool            { return true }
func (fixed) Objects() config.Objects { return config.Objects{} }

// pod is a proxy's pod: an engine with the real HAProxy, and an agent.
type pod struct {
	*testing.T
	agent  *agent
	engine *engine
	state  haproxy.State
}

func newPod(t *testing.T, services ...haproxy.Service) *pod {
	t.Helper()
	return newPodOf(t, 4000, services...)
}

// newPodOf makes a pod whose namespaces have so many connections.
func newPodOf(t *testing.T, connections int, services ...haproxy.Service) *pod {
	t.Helper()
	program, err := exec.LookPath("haproxy")
	if err != nil {
		t.Skip("HAProxy is not installed")
	}
	dir, err := os.MkdirTemp("", "proxy") // the path of a socket must be short
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	p := &pod{T: t, agent: newAgent(log, dir), engine: newEngine(log)}
	p.engine.program = program
	p.engine.dir = dir
	p.engine.listen = "127.0.0.1:" + freePort(t)
	p.engine.drain = time.Hour
	p.agent.cluster, p.agent.program, p.agent.engine = fixed{}, program, haproxy.Engine{MaxConn: connections}
	p.agent.measure()
	p.agent.engine.Threads = 2
	p.agent.desired = func() haproxy.State { return p.state }
	p.state = haproxy.State{Engine: p.agent.engine, Services: services}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- p.engine.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ran
	})
	p.apply()
	return p
}

// sync runs the agent once, and then each tenant.
func (p *pod) sync() error {
	_, err := p.agent.sync(context.Background())
	for _, t := range p.agent.tenants {
		_, failed := t.sync(context.Background())
		err = errors.Join(err, failed)
	}
	return err
}

// tenant is the namespace of the first Service.
func (p *pod) tenant() *tenant {
	p.Helper()
	if t := p.agent.tenants[p.state.Services[0].Key.Namespace]; t != nil {
		return t
	}
	p.Fatal("the namespace has no seat")
	return nil
}

// of is the state of a namespace's seat.
func (p *pod) of(t *tenant) haproxy.State {
	out := haproxy.State{Engine: p.state.Engine, Internal: p.state.Internal}
	out.Directory = t.engine.Directory
	for _, s := range p.state.Services {
		if s.Key.Namespace == t.namespace {
			out.Services = append(out.Services, s)
		}
	}
	return out
}

// hasAll reports whether a worker has what is wanted of it, and the agent knows that.
func (p *pod) hasAll(t *tenant) bool {
	want := p.of(t)
	hash, err := t.running(context.Background())
	lacks, err2 := t.commands(context.Background(), want)
	return errors.Join(err, err2) == nil && hash == want.Config().Hash && hash == t.hash && haproxy.Settled(lacks)
}

// soon forgets the last reload: the pause between two has a test of its own.
func (p *pod) soon() {
	for _, t := range p.agent.tenants {
		t.last = time.Time{}
	}
}

// apply runs the agent until the engine has what is wanted, and the agent knows it.
func (p *pod) apply() {
	p.Helper()
	nstest.Until(p.T, 30*time.Second, "the engine has what is wanted", func() bool {
		if err := p.sync(); err != nil {
			p.Log(err)
			return false
		}
		for _, s := range p.state.Services {
			if t := p.agent.tenants[s.Key.Namespace]; t == nil || !p.hasAll(t) {
				return false
			}
		}
		return true
	})
}

// reload applies a change of one Service that needs a reload.
func (p *pod) reload() {
	p.Helper()
	p.state.Services[0].Member += time.Millisecond
	p.soon()
	p.apply()
}

var pidPattern = regexp.MustCompile(`(?m)^Pid: (\d+)$`)

// pid is the running worker's.
func (p *pod) pid() string {
	text, err := p.tenant().talk(context.Background(), "show info")
	if m := pidPattern.FindStringSubmatch(text); err == nil && m != nil {
		return m[1]
	}
	p.Fatal(text, err)
	return ""
}

func (p *pod) reloads(result string) float64 {
	return testutil.ToFloat64(p.agent.reloads.WithLabelValues("shop", result))
}

// network is a client, the pod's own namespace and the pods behind it.
type network struct {
	*testing.T
	client, pods *nstest.NS
}

const hops = 40 // addresses of the client

func newNetwork(t *testing.T) *network {
	n := &network{t, nstest.New(t), nstest.New(t)}
	self := nstest.Self(t)
	nstest.Veth(t, self, "clients", n.client, "eth0")
	nstest.Veth(t, self, "pods", n.pods, "eth0")
	self.SetUp("lo")
	self.AddAddress("clients", "10.0.0.1/24", "fd00::1/64")
	self.AddAddress("pods", "10.1.0.254/24", "fd01::fe/64")
	for i := range hops {
		n.client.AddAddress("eth0", fmt.Sprintf("10.0.0.%d/24", 10+i), fmt.Sprintf("fd00::%d/64", 10+i))
	}
	for i := 1; i <= 4; i++ {
		n.pods.AddAddress("eth0", fmt.Sprintf("10.1.0.%d/24", i), fmt.Sprintf("fd01::%d/64", i))
	}
	return n
}

// listen opens a port of a pod.
func (n *network) listen(address string) net.Listener {
	n.Helper()
	var l net.Listener
	var err error
	n.pods.Do(func() { l, err = net.Listen("tcp", address) })
	must(n, err)
	n.Cleanup(func() { l.Close() })
	return l
}

// headers serves connections that begin with a PROXY header: it answers each line with the header as an independent
// parser reads it.
func (n *network) headers(address string) {
	l := n.listen(address)
	go nstest.ServeEach(l, func(c net.Conn) {
		r := bufio.NewReader(c)
		h, err := proxyproto.Read(r)
		if err != nil {
			fmt.Fprintln(c, "no header:", err)
			return
		}
		for lines := bufio.NewScanner(r); lines.Scan(); {
			fmt.Fprintf(c, "v%d %v %v at %s\n", h.Version, h.SourceAddr, h.DestinationAddr, address)
		}
	})
}

// names serves connections without a header: it answers each line with the pod's address.
func (n *network) names(address string) {
	l := n.listen(address)
	go nstest.ServeEach(l, func(c net.Conn) {
		for lines := bufio.NewScanner(c); lines.Scan(); {
			fmt.Fprintln(c, address)
		}
	})
}

// four are four pods that name themselves.
func (n *network) four() (all []string) {
	for i := 1; i <= 4; i++ {
		all = append(all, fmt.Sprintf("10.1.0.%d:80", i))
		n.names(all[i-1])
	}
	return all
}

// forwarded answers with what proxies say of the client.
func forwarded(w http.ResponseWriter, r *http.Request) {
	fmt.Fprint(w, r.Header["X-Forwarded-For"], r.Header["X-Forwarded-Proto"], r.Header["X-Forwarded-Port"])
}

// underLoad makes changes while clients connect, and one connection stays open: no answer may be missing.
func (n *network) underLoad(changes int, dial func(from string) (net.Conn, error), change func(i int)) {
	n.Helper()
	open, err := dial("10.0.0.10")
	must(n, err)
	defer open.Close()
	answers := bufio.NewReader(open)
	ctx, stop := context.WithCancel(context.Background())
	var requests, failed atomic.Int64
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for ctx.Err() == nil {
				requests.Add(1)
				c, err := dial(fmt.Sprintf("10.0.0.%d", 11+i))
				if err == nil {
					_ = c.SetDeadline(time.Now().Add(5 * time.Second))
					fmt.Fprintln(c, "hello")
					_, err = bufio.NewReader(c).ReadString('\n')
					c.Close()
				}
				if err != nil {
					failed.Add(1)
					n.Log(err)
				}
			}
		})
	}
	for i := range changes {
		change(i)
		_ = open.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprintln(open, "still here?")
		if _, err := answers.ReadString('\n'); err != nil {
			n.Fatalf("the open connection ended: %v", err)
		}
	}
	stop()
	group.Wait()
	n.Logf("%d requests", requests.Load())
	if failed.Load() > 0 || requests.Load() < 100 {
		n.Errorf("%d of %d requests failed", failed.Load(), requests.Load())
	}
}

// dial connects a client.
func (n *network) dial(from, to string) (c net.Conn, err error) {
	n.client.Do(func() {
		d := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		c, err = d.Dial("tcp", to)
	})
	return c, err
}

// ask sends a line from an address of the client, and returns the answer and the client's port.
func (n *network) ask(from, to string) (answer string, local net.Addr, err error) {
	c, err := n.dial(from, to)
	if err != nil {
		return "", nil, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintln(c, "hello")
	answer, err = bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(answer), c.LocalAddr(), err
}

func testService(name string, listen uint16, change func(*haproxy.Service), endpoints ...string) haproxy.Service {
	s := haproxy.Service{
		Key: lb.Key{Namespace: "shop", Name: name}, Addresses: []netip.Addr{
			netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10"),
		},
		Proxy: lb.Proxy{Method: lb.RoundRobin, Client: 50 * time.Second, Member: 50 * time.Second, Connect: time.Second},
		Ports: []haproxy.Port{{Port: 443, Listen: listen}},
	}
	for _, e := range endpoints {
		s.Ports[0].Endpoints = append(s.Ports[0].Endpoints, netip.MustParseAddrPort(e))
	}
	if change != nil {
		change(&s)
	}
	return s
}

func TestHeaders(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		n.headers("10.1.0.1:80")
		n.headers("[fd01::1]:80")
		n.web("10.1.0.1:8080", forwarded)
		// its checks have a header too
		monitor := &lb.Monitor{Delay: 200 * time.Millisecond, Timeout: time.Second, Rise: 1, Fall: 1}
		newPod(t,
			testService("one", 31001, func(s *haproxy.Service) { s.Header = 1 }, "10.1.0.1:80"),
			testService("two", 31002, func(s *haproxy.Service) {
				s.Header, s.Monitor, s.Inspect = 2, monitor, time.Second
			}, "[fd01::1]:80"),
			testService("web", 31003, func(s *haproxy.Service) { s.HTTP = true }, "10.1.0.1:8080"))
		for version, port := range map[int]string{1: "31001", 2: "31002"} {
			for from, to := range map[string]string{"10.0.0.10": "10.0.0.1", "fd00::10": "fd00::1"} {
				destination, at := "192.0.2.10:443", map[int]string{1: "10.1.0.1:80", 2: "[fd01::1]:80"}[version]
				if strings.Contains(from, ":") {
					destination = "[2001:db8::10]:443"
				}
				got, local, err := n.ask(from, net.JoinHostPort(to, port))
				if want := fmt.Sprintf("v%d %v %s at %s", version, local, destination, at); err != nil || got != want {
					t.Errorf("from %s: %q (%v), want %q", from, got, err, want)
				}
			}
		}
		for from, to := range map[string]string{"10.0.0.10": "10.0.0.1", "fd00::10": "[fd00::1]"} {
			client := http.Client{Transport: &http.Transport{
				DialContext: func(context.Context, string, string) (net.Conn, error) { return n.dial(from, to+":31003") },
			}}
			r, _ := http.NewRequest("GET", "http://shop/", nil)
			r.Header.Set("X-Forwarded-For", "198.51.100.7") // what the client says of itself stays, before what is true
			r.Header.Set("X-Forwarded-Proto", "https")
			answer, err := client.Do(r)
			must(t, err)
			got, _ := io.ReadAll(answer.Body)
			if want := fmt.Sprintf("[198.51.100.7 %s] [http] [443]", from); string(got) != want {
				t.Errorf("from %s: %q, want %q", from, got, want)
			}
		}
	})
}

// The proxy's own address is no way round the lists, of either family.
func TestLists(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		n.names("10.1.0.1:80")
		p := func(text string) netip.Prefix { return netip.MustParsePrefix(text) }
		lists := func(change func(*lb.Access)) func(*haproxy.Service) {
			return func(s *haproxy.Service) { change(&s.Access) }
		}
		pod := newPod(t,
			testService("open", 31000, nil, "10.1.0.1:80"),
			testService("allow4", 31001, lists(func(a *lb.Access) {
				a.Restricted, a.Allow = true, []netip.Prefix{p("10.0.0.10/32")}
			}), "10.1.0.1:80"),
			testService("allow6", 31002, lists(func(a *lb.Access) {
				a.Restricted, a.Allow = true, []netip.Prefix{p("::/0")}
			}), "10.1.0.1:80"),
			testService("deny", 31003, lists(func(a *lb.Access) {
				a.Deny = []netip.Prefix{p("10.0.0.10/32"), p("fd00::10/128")}
			}), "10.1.0.1:80"),
			testService("none", 31004, lists(func(a *lb.Access) { a.Restricted = true }), "10.1.0.1:80"),
			testService("inside", 31005, lists(func(a *lb.Access) {
				a.Restricted, a.InternalAllowed = true, true
			}), "10.1.0.1:80"))
		pod.state.Internal = []netip.Prefix{p("10.0.0.11/32"), p("fd00::11/128")}
		pod.apply()
		for port, want := range map[int]string{
			31000: "yyyy", 31001: "ynnn", 31002: "nnyy", 31003: "nyny", 31004: "nnnn", 31005: "nyny",
		} {
			got := ""
			for _, from := range []string{"10.0.0.10", "10.0.0.11", "fd00::10", "fd00::11"} {
				if answer, _, err := n.ask(from, door(from, port)); err == nil && answer == "10.1.0.1:80" {
					got += "y"
				} else {
					got += "n"
				}
			}
			if got != want {
				t.Errorf("port %d: %s, want %s", port, got, want)
			}
		}
		if err := testutil.CollectAndCompare(traffic{pod.agent}, strings.NewReader(`
# HELP holdfast_proxy_connections_total Connections of clients to the running worker.
# TYPE holdfast_proxy_connections_total counter
holdfast_proxy_connections_total{namespace="shop",port="443",service="allow4"} 1
holdfast_proxy_connections_total{namespace="shop",port="443",service="allow6"} 2
holdfast_proxy_connections_total{namespace="shop",port="443",service="deny"} 2
holdfast_proxy_connections_total{namespace="shop",port="443",service="inside"} 2
holdfast_proxy_connections_total{namespace="shop",port="443",service="none"} 0
holdfast_proxy_connections_total{namespace="shop",port="443",service="open"} 4
# HELP holdfast_proxy_endpoints Endpoints that get connections.
# TYPE holdfast_proxy_endpoints gauge
holdfast_proxy_endpoints{namespace="shop",port="443",service="allow4"} 1
holdfast_proxy_endpoints{namespace="shop",port="443",service="allow6"} 1
holdfast_proxy_endpoints{namespace="shop",port="443",service="deny"} 1
holdfast_proxy_endpoints{namespace="shop",port="443",service="inside"} 1
holdfast_proxy_endpoints{namespace="shop",port="443",service="none"} 1
holdfast_proxy_endpoints{namespace="shop",port="443",service="open"} 1
# HELP holdfast_proxy_refused_total Connections refused by source or by number.
# TYPE holdfast_proxy_refused_total counter
holdfast_proxy_refused_total{namespace="shop",port="443",service="allow4"} 3
holdfast_proxy_refused_total{namespace="shop",port="443",service="allow6"} 2
holdfast_proxy_refused_total{namespace="shop",port="443",service="deny"} 2
holdfast_proxy_refused_total{namespace="shop",port="443",service="inside"} 2
holdfast_proxy_refused_total{namespace="shop",port="443",service="none"} 4
holdfast_proxy_refused_total{namespace="shop",port="443",service="open"} 0
`), "holdfast_proxy_connections_total", "holdfast_proxy_endpoints", "holdfast_proxy_refused_total"); err != nil {
			t.Error(err)
		}
	})
}

// in puts a Service into a namespace.
func in(namespace string, change func(*haproxy.Service)) func(*haproxy.Service) {
	return func(s *haproxy.Service) {
		s.Key.Namespace = namespace
		if change != nil {
			change(s)
		}
	}
}

// hold opens a connection that is answered, and keeps it.
func (n *network) hold(from, to string) net.Conn {
	n.Helper()
	c, err := n.dial(from, to)
	must(n, err)
	n.Cleanup(func() { c.Close() })
	if !lives(c) {
		n.Fatalf("%s is not served", to)
	}
	return c
}

// lives reports whether a connection is answered.
func lives(c net.Conn) bool {
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	fmt.Fprintln(c, "hello")
	_, err := bufio.NewReader(c).ReadString('\n')
	return err == nil
}

// TestTenants plays what one namespace can do beside another one, whose open connection lives and whose new ones are
// served: it uses all its connections, edits again and again, loses its worker, and leaves.
func TestTenants(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		n.names("10.1.0.1:80")
		forever := func(s *haproxy.Service) { s.Client, s.Member = 24*time.Hour, 24*time.Hour }
		p := newPodOf(t, 8, testService("victim", 31009, in("shop", forever), "10.1.0.1:80"),
			testService("e", 31001, in("evil", forever), "10.1.0.1:80"))
		victim, evil := p.agent.tenants["shop"], p.agent.tenants["evil"]
		open := n.hold("10.0.0.20", "10.0.0.1:31009")
		unharmed := func(after string) {
			t.Helper()
			if !lives(open) {
				t.Fatalf("%s: the open connection of the other namespace ended", after)
			}
			if _, _, err := n.ask("10.0.0.21", "10.0.0.1:31009"); err != nil {
				t.Errorf("%s: a new connection of the other namespace fails: %v", after, err)
			}
			if answer, err := http.Get("http://" + p.engine.listen + "/readyz"); err != nil ||
				answer.StatusCode != http.StatusOK {
				t.Errorf("%s: the pod is not ready (%v)", after, err)
			}
		}
		for range 8 {
			n.hold("10.0.0.10", "10.0.0.1:31001")
		}
		unharmed("with all connections of one namespace in use")

		for range haproxy.MaxOld + 2 {
			p.state.Services[1].Member += time.Millisecond
			evil.last, evil.since = time.Time{}, time.Now().Add(-time.Hour)
			p.apply()
		}
		unharmed("after many edits")
		if got := testutil.ToFloat64(victim.reloads.WithLabelValues("done")); got != 0 {
			t.Errorf("the other namespace's HAProxy was reloaded %v times", got)
		}
		if old, err := evil.countOld(t.Context()); err != nil || old > haproxy.MaxOld {
			t.Errorf("%d old workers (%v)", old, err)
		}

		// A refused configuration, and a port that the other namespace has.
		p.state.Services[1].Ports[0].Listen = 31009
		evil.last, evil.since = time.Time{}, time.Now().Add(-time.Hour)
		must(t, p.sync())
		unharmed("with the node port of the other namespace")
		if got := evil.faults(); got["evil/e"] != lb.ProxyPortTaken {
			t.Errorf("reported are %v", got)
		}

		p.state.Services = p.state.Services[:1]
		p.agent.served, p.agent.lingers = p.state.Services, map[lb.Key]time.Time{} // they linger in a test of their own
		must(t, p.sync())
		nstest.Until(t, 10*time.Second, "the namespace has no frontends", func() bool {
			what, _ := p.engine.state()
			return what.Frontends["evil/e"] == nil && what.Frontends["shop/victim"] != nil
		})
		unharmed("after the other namespace left")
		if files, _ := filepath.Glob(filepath.Join(p.agent.dir, "evil", "*.cfg")); len(files) > 0 {
			t.Errorf("files stay: %v", files)
		}
	})
}

// TestPortMoves: a node port that went from one namespace to another is served as soon as the former one left it.
func TestPortMoves(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		n.names("10.1.0.1:80")
		n.names("10.1.0.2:80")
		p := newPod(t, testService("a", 31001, in("one", nil), "10.1.0.1:80"),
			testService("a2", 31003, in("one", nil), "10.1.0.1:80"),
			testService("b", 31002, in("two", nil), "10.1.0.2:80"))
		p.state.Services[0].Ports[0].Listen, p.state.Services[2].Ports[0].Listen = 31004, 31001
		nstest.Until(t, 20*time.Second, "the port has moved", func() bool {
			p.soon()
			if err := p.sync(); err != nil {
				t.Log(err)
			}
			answer, _, err := n.ask("10.0.0.10", "10.0.0.1:31001")
			return err == nil && answer == "10.1.0.2:80"
		})
		p.apply()
		for _, tenant := range p.agent.tenants {
			if faults := tenant.faults(); len(faults) > 0 {
				t.Errorf("reported are %v", faults)
			}
		}
	})
}

// TestInternal: nodes and pods that come are let in without a reload.
func TestInternal(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		n.names("10.1.0.1:80")
		inside := func(s *haproxy.Service) { s.Restricted, s.InternalAllowed = true, true }
		p := newPod(t, testService("inside", 31001, inside, "10.1.0.1:80"))
		pid := p.pid()
		for _, tt := range []struct {
			internal string
			lets     bool
		}{{"10.0.0.10/32", true}, {"10.0.0.11/32", false}, {"10.0.0.0/28", true}} {
			p.state.Internal = []netip.Prefix{netip.MustParsePrefix(tt.internal)}
			p.apply()
			if _, _, err := n.ask("10.0.0.10", "10.0.0.1:31001"); (err == nil) != tt.lets {
				t.Errorf("with %s internal: %v", tt.internal, err)
			}
		}
		if p.pid() != pid || p.reloads("done") != 0 {
			t.Errorf("%v reloads", p.reloads("done"))
		}
	})
}

// One client reaches one pod through every proxy, whether the engine got its servers from the file or by its socket,
// and after a reload.
func TestSourceIP(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		all := n.four()
		hash := func(s *haproxy.Service) { s.Method = lb.SourceIP }
		one := newPod(t, testService("hash", 31001, hash, all[2:]...))
		newPod(t, testService("hash", 31002, hash, all...))
		pid := one.pid()
		one.state.Services = []haproxy.Service{testService("hash", 31001, hash, all...)}
		one.apply()
		if one.pid() != pid || one.reloads("done") != 0 {
			t.Errorf("two endpoints came with %v reloads", one.reloads("done"))
		}
		targets := func(port string) (out map[string]string) {
			out = map[string]string{}
			for i := range hops {
				from := fmt.Sprintf("10.0.0.%d", 10+i)
				answer, _, err := n.ask(from, "10.0.0.1:"+port)
				must(t, err)
				out[from] = answer
			}
			return out
		}
		compare := func(what string, a, b map[string]string, but string) {
			moved := 0
			for from, to := range a {
				if b[from] != to && to != but {
					moved++
				}
			}
			if moved > 0 {
				t.Errorf("%s: %d of %d clients reach another pod", what, moved, hops)
			}
		}
		first, share := targets("31001"), map[string]int{}
		for _, to := range first {
			share[to]++
		}
		if len(share) != len(all) {
			t.Errorf("the clients reach %v", share)
		}
		compare("through another proxy", first, targets("31002"), "")
		one.reload()
		compare("after a reload", first, targets("31001"), "")
		// A pod that ends moves its own clients only, and takes no new ones.
		one.state.Services[0].Ports[0].Endpoints = one.state.Services[0].Ports[0].Endpoints[1:]
		one.apply()
		after := targets("31001")
		compare("without a pod", first, after, all[0])
		for from, to := range after {
			if to == all[0] {
				t.Errorf("%s reaches a pod that ended", from)
			}
		}
		if one.reloads("done") != 1 {
			t.Errorf("%v reloads", one.reloads("done"))
		}
	})
}

// A reload costs no request and no connection, and does not forget that an endpoint is dead.
func TestReloads(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		n.names("10.1.0.1:80")
		monitor := &lb.Monitor{Delay: time.Second, Timeout: time.Second, Rise: 1, Fall: 1}
		p := newPod(t, testService("plain", 31001, nil, "10.1.0.1:80"),
			testService("dead", 31002, func(s *haproxy.Service) { s.Monitor = monitor }, "10.1.0.1:80", "10.1.0.2:80"))
		down := func() bool {
			text, err := p.tenant().talk(context.Background(), "show servers state shop:dead:443")
			return err == nil && strings.Contains(text, "10.1.0.2_80 10.1.0.2 0 0")
		}
		nstest.Until(t, 10*time.Second, "the check fails", down)
		n.underLoad(20, func(from string) (net.Conn, error) { return n.dial(from, "10.0.0.1:31001") }, func(int) {
			p.reload()
			if !down() {
				t.Error("the new worker takes a dead endpoint for alive")
			}
		})
		if p.reloads("done") != 20 {
			t.Errorf("%v reloads", p.reloads("done"))
		}
		if files, _ := filepath.Glob(filepath.Join(p.agent.dir, "*", "*")); len(files) > 10 {
			t.Errorf("%d files stay: %v", len(files), files)
		}
	})
}

// A port that another program has is missing, and reported, until it is free; all else goes on.
func TestTakenPort(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		n.names("10.1.0.1:80")
		n.names("10.1.0.2:80")
		taken, err := net.Listen("tcp", "0.0.0.0:31002")
		must(t, err)
		p := newPod(t, testService("plain", 31001, nil, "10.1.0.1:80"))
		other := testService("other", 31002, nil, "10.1.0.1:80")
		other.Ports = append(other.Ports, haproxy.Port{Port: 80, Listen: 31003, Endpoints: other.Ports[0].Endpoints})
		p.state.Services = append(p.state.Services, other)
		for range 5 {
			p.soon()
			must(t, p.sync())
		}
		if p.reloads("refused") != 0 || p.reloads("done") != 1 {
			t.Errorf("%v refused, %v done", p.reloads("refused"), p.reloads("done"))
		}
		if got, _, err := n.ask("10.0.0.10", "10.0.0.1:31003"); err != nil || got != "10.1.0.1:80" {
			t.Errorf("the other port: %q %v", got, err)
		}
		if got := p.tenant().faults(); len(got) != 1 || got["shop/other"] != lb.ProxyPortTaken {
			t.Errorf("reported are %v", got)
		}
		// Endpoints go on to change.
		p.state.Services[0] = testService("plain", 31001, nil, "10.1.0.2:80")
		must(t, p.sync())
		if got, _, err := n.ask("10.0.0.10", "10.0.0.1:31001"); err != nil || got != "10.1.0.2:80" {
			t.Errorf("%q %v", got, err)
		}
		taken.Close()
		p.soon()
		p.apply()
		if got, _, err := n.ask("10.0.0.10", "10.0.0.1:31002"); err != nil || got != "10.1.0.1:80" {
			t.Errorf("%q %v", got, err)
		}
		// Who has yet to hear that a Service is no longer wanted is served.
		p.state.Services = p.state.Services[:1]
		p.soon()
		must(t, p.sync())
		if got, _, err := n.ask("10.0.0.10", "10.0.0.1:31002"); err != nil || got != "10.1.0.1:80" {
			t.Errorf("%q %v", got, err)
		}
		// A restart of the agent is no reload.
		p.state.Services = p.agent.served
		again := newAgent(p.agent.log, p.agent.dir)
		again.cluster = p.agent.cluster
		again.engine = p.agent.engine
		again.bounds = p.agent.bounds
		again.desired = p.agent.desired
		p.agent = again
		if err := p.sync(); err != nil || p.reloads("done") != 0 {
			t.Errorf("a restart of the agent: %v reloads (%v)", p.reloads("done"), err)
		}
	})
}

// TestRefusedFile: an engine that refuses a file goes on with the old one, and is not asked again until there is
// another, or some time has passed.
func TestRefusedFile(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		n := newNetwork(t)
		n.names("10.1.0.1:80")
		n.names("10.1.0.2:80")
		p := newPod(t, testService("plain", 31001, nil, "10.1.0.1:80"))
		before := p.of(p.tenant()).Config().Hash
		wrong := testService("wrong", 31002, func(s *haproxy.Service) {
			s.Secret, s.Certificate = "tls", strings.Repeat("0", 32)
		})
		must(t, os.WriteFile(filepath.Join(p.tenant().engine.Directory, haproxy.PairFile(wrong.Certificate)),
			[]byte("no pair"), 0o600))
		p.state.Services = append(p.state.Services, wrong)
		for range 5 {
			p.tenant().last = time.Now().Add(-retryTime / 2)
			must(t, p.sync())
		}
		if p.reloads("refused") != 1 || p.reloads("done") != 0 {
			t.Errorf("%v refused, %v done", p.reloads("refused"), p.reloads("done"))
		}
		// Endpoints of what is in force go on to change.
		p.state.Services[0] = testService("plain", 31001, nil, "10.1.0.2:80")
		must(t, p.sync())
		if got, _, err := n.ask("10.0.0.10", "10.0.0.1:31001"); err != nil || got != "10.1.0.2:80" {
			t.Errorf("%q %v", got, err)
		}
		text, _ := os.ReadFile(filepath.Join(p.tenant().engine.Directory, configFile))
		if !strings.Contains(string(text), before) || !strings.Contains(string(text), "10.1.0.2:80") {
			t.Errorf("a restart would begin with\n%s", text)
		}
	})
}

// TestBegin: the loop of a namespace begins with what is wanted. With nothing it would have the worker of an agent
// before close all ports.
func TestBegin(t *testing.T) {
	a := newAgent(slog.New(slog.DiscardHandler), t.TempDir())
	a.cluster, a.desired = fixed{}, func() haproxy.State {
		return haproxy.State{Services: []haproxy.Service{testService("web", 31001, nil)}}
	}
	begun := 0
	a.begin = func(o *tenant) {
		begun++
		if len(o.wanted.Services) != 1 {
			t.Errorf("it begins with %d Services", len(o.wanted.Services))
		}
	}
	for range 2 {
		_, err := a.sync(t.Context())
		must(t, err)
	}
	if begun != 1 {
		t.Errorf("%d loops began", begun)
	}
}
