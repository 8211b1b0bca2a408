package kubeproxy

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// TestRules: what exists in a real kernel, as the modes of kube-proxy leave it there.
func TestRules(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		nft := func(command string) func() { return func() { node.Output("nft", command) } }
		for _, tt := range []struct {
			name string
			does func()
			want sign
		}{
			{"nothing", func() {}, silent},
			{"somebody else's", nft("add table inet kube-proxy; add table ip nat; add chain ip nat KUBE-SERVICES"), silent},
			{"iptables, chains that rules will lead to", nft("add chain ip nat KUBE-POSTROUTING; add table ip6 filter; add chain ip6 filter KUBE-MARK-MASQ"), silent},
			{"iptables, IPv4", nft("add chain ip nat KUBE-MARK-MASQ"), oneFamily},
			{"iptables", nft("add table ip6 nat; add chain ip6 nat KUBE-MARK-MASQ"), allFamilies},
			{"taken away again", nft("flush ruleset"), silent},
			{"nftables, IPv4", nft("add table ip kube-proxy"), oneFamily},
			{"nftables", nft("add table ip6 kube-proxy"), allFamilies},
			{"IPv6 alone", nft("delete table ip kube-proxy"), oneFamily},
			{"a node without IPv6", func() {
				nft("flush ruleset; add table ip kube-proxy")()
				node.Sysctl("ipv6/conf/all/disable_ipv6", "1")
			}, allFamilies},
			{"marked", func() {
				nft("flush ruleset")()
				for range 2 {
					must(t, mark())
				}
			}, servedBefore},
			{"forgotten", func() {
				for range 2 {
					must(t, Forget())
				}
			}, silent},
		} {
			tt.does()
			if got := rules(); got != tt.want {
				t.Errorf("%s: %s", tt.name, got.describe("it"))
			}
		}
		if got := node.Output("nft", "list", "tables"); got != "" {
			t.Errorf("left are %s", got)
		}
	})
}

// TestBoot starts a node: kube-proxy listens before it has made its rules, and a second
// speaker does not wait, though kube-proxy is gone.
func TestBoot(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		var asked atomic.Int64
		proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
		start := func() (*Boot, func()) {
			b := New(Config{Log: slog.New(slog.DiscardHandler), Livez: proxy.Listener.Addr().String(), Kick: func() {}})
			return b, nstest.Running(t, b.Run)
		}
		b, stop := start()
		<-b.Looked()
		looks := asked.Load()
		nstest.Until(t, 5*time.Second, "two more looks", func() bool { return asked.Load() >= looks+2 })
		if b.Served() {
			t.Error("it has served without rules")
		}
		node.Output("nft", "add table ip kube-proxy; add table ip6 kube-proxy")
		nstest.Until(t, 5*time.Second, "the rules are seen", b.Served)
		stop()
		proxy.Close()
		node.Output("nft", "delete table ip kube-proxy; delete table ip6 kube-proxy")
		b, stop = start()
		<-b.Looked()
		if !b.Served() {
			t.Errorf("the second speaker waits: %s", b.Waiting())
		}
		stop()
	})
}

// pair is a connection to the Service: the client's end and the endpoint's.
type pair struct{ client, endpoint *net.TCPConn }

// TestForgetEnded: connections that have ended are forgotten. What is open, half closed, or waits for the last data to come
// again, stays, and the client gets all of it.
func TestForgetEnded(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, w := range attemptWorlds {
			t.Run(w.family, w.testEnded)
		}
	})
}

func (w attemptWorld) testEnded(t *testing.T) {
	node, client, pods := nstest.Self(t), nstest.New(t), nstest.New(t)
	w.connect(t, node, client, pods)
	node.Sysctl("netfilter/nf_conntrack_tcp_timeout_close", "120")
	w.lead(node, w.live)
	dial := w.pairs(t, client, pods)
	closed, reset, open, half, unheard := dial(), dial(), dial(), dial(), dial()
	must(t, closed.endpoint.Close())
	_, err := io.ReadAll(closed.client)
	must(t, err)
	must(t, closed.client.Close())
	must(t, reset.client.SetLinger(0))
	must(t, reset.client.Close())
	must(t, half.client.CloseWrite())
	_, err = io.ReadAll(half.endpoint)
	must(t, err)

	// Both sides close, and the endpoint's last data does not arrive: it is sent again, or the client asks for a sign of life, and the
	// state is TIME_WAIT.
	must(t, unheard.client.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second}))
	must(t, unheard.client.CloseWrite())
	_, err = io.ReadAll(unheard.endpoint)
	must(t, err)
	client.Output("nft", "table inet deaf { chain c { type filter hook input priority 0; tcp sport 80 tcp flags & (psh | fin) != 0 drop; }; }")
	w.finish(t, unheard.endpoint)
	nstest.Until(t, long, "all are in their states", func() bool {
		n := w.states(t)
		return n[nl.TCP_CONNTRACK_TIME_WAIT] == 2 && n[nl.TCP_CONNTRACK_CLOSE] == 1
	})

	forget := func(address string) int {
		t.Helper()
		n, err := forgetEnded(map[netip.Addr]bool{netip.MustParseAddr(address): true})
		must(t, err)
		return n
	}
	if n := forget(w.dead); n != 0 {
		t.Errorf("%d connections to another address were forgotten", n)
	}
	if n := forget(w.service); n != 2 {
		t.Errorf("%d connections were forgotten, want 2", n)
	}
	client.Output("nft", "delete table inet deaf")
	for _, one := range []pair{open, half} {
		w.finish(t, one.endpoint)
	}
	for name, one := range map[string]pair{"open": open, "half closed": half, "unheard": unheard} {
		must(t, one.client.SetReadDeadline(time.Now().Add(long)))
		if got, err := io.ReadAll(one.client); err != nil || string(got) != "all" {
			t.Errorf("%s: the client got %q, %v", name, got, err)
		}
	}
}

// finish sends the last data of an endpoint.
func (w attemptWorld) finish(t *testing.T, endpoint *net.TCPConn) {
	t.Helper()
	if _, err := endpoint.Write([]byte("all")); err != nil {
		t.Fatal(err)
	}
	must(t, endpoint.Close())
}

// pairs returns a function that connects to the Service.
func (w attemptWorld) pairs(t *testing.T, client, pods *nstest.NS) func() pair {
	var l net.Listener
	var err error
	pods.Do(func() { l, err = net.Listen("tcp", net.JoinHostPort(w.live, "80")) })
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return func() pair {
		var c, e net.Conn
		client.Do(func() { c, err = net.DialTimeout("tcp", net.JoinHostPort(w.service, "80"), long) })
		must(t, err)
		if e, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close(); e.Close() })
		return pair{c.(*net.TCPConn), e.(*net.TCPConn)}
	}
}

// states counts the connections to the Service in each of conntrack's states.
func (w attemptWorld) states(t *testing.T) (n [nl.TCP_CONNTRACK_MAX]int) {
	t.Helper()
	family := map[string]netlink.InetFamily{"ip": unix.AF_INET, "ip6": unix.AF_INET6}[w.family]
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
	must(t, err)
	for _, f := range flows {
		if tcp, ok := f.ProtoInfo.(*netlink.ProtoInfoTCP); ok && f.Forward.DstIP.String() == w.service {
			n[tcp.State]++
		}
	}
	return n
}
