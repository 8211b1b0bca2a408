package kubeproxy

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Rules as kube-proxy makes them, in mode nftables and in mode iptables by nf_tables, %s the family.
const (
	nftablesRules = "add table %[1]s kube-proxy; add chain %[1]s kube-proxy services; " +
		"add chain %[1]s kube-proxy nat-prerouting { type nat hook prerouting priority dstnat; }; flush chain %[1]s " +
		"kube-proxy nat-prerouting; " +
		"add rule %[1]s kube-proxy nat-prerouting jump services; "
	iptablesChains = "add table %[1]s nat; add chain %[1]s nat PREROUTING { type nat hook prerouting " +
		"priority dstnat; }; add chain %[1]s nat KUBE-SERVICES; "
	iptablesJump  = "add rule %[1]s nat PREROUTING counter jump KUBE-SERVICES; "
	iptablesRules = iptablesChains + "add chain %[1]s nat KUBE-MARK-MASQ; flush chain %[1]s nat PREROUTING; " +
		iptablesJump
)

// inBoth returns commands of nft for both families.
func inBoth(rules string) string { return fmt.Sprintf(rules, "ip") + fmt.Sprintf(rules, "ip6") }

// TestRules: what exists in a real kernel, as the modes of kube-proxy leave it there, and the tools of firewalls.
func TestRules(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		nft := func(command string) func() { return func() { node.Output("nft", command) } }
		for _, tt := range []struct {
			name   string
			change func()
			want   sign
		}{
			{"nothing", func() {}, silent},
			{"another program's", nft("add table inet kube-proxy; add table ip nat; add chain ip nat KUBE-SERVICES"), silent},
			{"iptables, chains that rules will lead to",
				nft("add chain ip nat KUBE-POSTROUTING; add table ip6 filter; add chain ip6 filter KUBE-MARK-MASQ"), silent},
			{"iptables, the jump that precedes the rules", nft(fmt.Sprintf(iptablesChains+iptablesJump, "ip")), silent},
			{"iptables, IPv4", nft(fmt.Sprintf(iptablesRules, "ip")), oneFamily},
			{"iptables", nft(fmt.Sprintf(iptablesRules, "ip6")), allFamilies},
			{"iptables -t nat -F", nft("flush table ip nat"), oneFamily},
			{"and a sync of what changed, which makes no jump",
				nft("add rule ip nat KUBE-SERVICES counter; add rule ip nat KUBE-MARK-MASQ counter"), oneFamily},
			{"a sync of everything", nft(fmt.Sprintf(iptablesRules, "ip")), allFamilies},
			{"taken away again", nft("flush ruleset"), silent},
			{"nftables, IPv4", nft(fmt.Sprintf(nftablesRules, "ip")), oneFamily},
			{"nftables", nft(fmt.Sprintf(nftablesRules, "ip6")), allFamilies},
			{"nftables, flushed", nft("flush table ip kube-proxy"), oneFamily},
			{"nftables and iptables", nft(fmt.Sprintf(iptablesRules, "ip")), allFamilies},
			{"IPv6 alone", nft("delete table ip kube-proxy; delete table ip nat"), oneFamily},
			{"nftables, a version with another layout", nft("add table ip kube-proxy"), allFamilies},
			{"a node without IPv6", func() {
				nft("flush ruleset; add table ip kube-proxy")()
				node.Sysctl("ipv6/conf/all/disable_ipv6", "1")
			}, allFamilies},
			{"marked", func() {
				nft("flush ruleset")()
				for range 2 {
					must(t, marker().CreateEmpty())
				}
			}, servedBefore},
			{"forgotten", func() {
				for range 2 {
					must(t, Forget())
				}
			}, silent},
		} {
			tt.change()
			if got := kernelSign(); got != tt.want {
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
		node.Output("nft", inBoth(nftablesRules))
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

// TestRulesGone: a node whose kube-proxy has served, in any mode, loses the rules and gets them back.
//
// Trap: a reload of /etc/nftables.conf flushes the ruleset, and the node goes on announcing until kube-proxy syncs
// everything, after 30 seconds to an hour.
func TestRulesGone(t *testing.T) {
	for mode, rules := range map[string]string{"nftables": nftablesRules, "iptables": iptablesRules} {
		for _, loss := range []struct {
			command string
			want    string
		}{
			{"flush ruleset", "[IPv4 IPv6]"},
			{"flush table ip " + map[string]string{"nftables": "kube-proxy", "iptables": "nat"}[mode], "[IPv4]"},
		} {
			t.Run(mode+", "+loss.command, func(t *testing.T) {
				nstest.Run(t, func(t *testing.T) { testRulesGone(t, rules, loss.command, loss.want) })
			})
		}
	}
}

func testRulesGone(t *testing.T, rules, command, want string) {
	node := nstest.Self(t)
	var kicks atomic.Int64
	b := New(Config{Log: slog.New(slog.DiscardHandler), Livez: "127.0.0.1:10256", Kick: func() { kicks.Add(1) }})
	stop := nstest.Running(t, b.Run)
	node.Output("nft", inBoth(rules))
	nstest.Until(t, 5*time.Second, "the rules are seen", b.Served)

	node.Output("nft", command)
	nstest.Until(t, 5*time.Second, "the loss is seen", func() bool { return fmt.Sprint(b.RulesGone()) == want })
	nstest.Until(t, 5*time.Second, "the mark is removed", func() bool { return !marker().Exists() })
	if !b.Served() || kicks.Load() != 2 {
		t.Errorf("served %t, %d kicks", b.Served(), kicks.Load())
	}
	if got := b.Waiting(); !strings.Contains(got, "its rules are gone from the kernel: IPv4") {
		t.Error(got)
	}

	node.Output("nft", inBoth(rules))
	nstest.Until(t, 5*time.Second, "the rules are back", func() bool { return len(b.RulesGone()) == 0 })
	stop()
	if kicks.Load() != 3 || !marker().Exists() {
		t.Errorf("%d kicks, marked %t", kicks.Load(), marker().Exists())
	}
}

// TestSyncIsNoLoss: while kube-proxy replaces all its rules, again and again, they are not missing from one look of
// Boot to the next. A single look may fall into a replacement, since it reads tables and chains one after the other.
func TestSyncIsNoLoss(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		for _, tt := range []struct{ rules, replace string }{
			{nftablesRules, "delete table %[1]s kube-proxy; "}, {iptablesRules, "flush table %[1]s nat; "},
		} {
			node.Output("nft", inBoth(tt.rules))
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for range 50 {
					node.Output("nft", inBoth(tt.replace)+inBoth(tt.rules))
				}
			}()
			var missing time.Time
			for over := false; !over; {
				select {
				case <-ended:
					over = true
				default:
				}
				found, err := familiesWithRules()
				switch {
				case err != nil:
				case len(found) == 2:
					missing = time.Time{}
				case missing.IsZero():
					missing = time.Now()
				case time.Since(missing) > rulesInterval:
					t.Fatalf("for %v only the rules of %v are found", rulesInterval, found)
				}
			}
			node.Output("nft", "flush ruleset")
		}
	})
}

// pair is a connection to the Service: the client's end and the endpoint's.
type pair struct{ client, endpoint *net.TCPConn }

// TestForgetEnded: connections that have ended are forgotten. What is open, half closed, or waits for the last data to
// come again, stays, and the client gets all of it.
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
	closed := dial()
	reset := dial()
	open := dial()
	half := dial()
	unheard := dial()
	must(t, closed.endpoint.Close())
	_, err := io.ReadAll(closed.client)
	must(t, err)
	must(t, closed.client.Close())
	must(t, reset.client.SetLinger(0))
	must(t, reset.client.Close())
	must(t, half.client.CloseWrite())
	_, err = io.ReadAll(half.endpoint)
	must(t, err)

	// Both sides close, and the endpoint's last data does not arrive: it is sent again, or the client asks for a sign
	// of life, and the state is TIME_WAIT.
	must(t, unheard.client.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second}))
	must(t, unheard.client.CloseWrite())
	_, err = io.ReadAll(unheard.endpoint)
	must(t, err)
	client.Output("nft",
		"table inet deaf { chain c { type filter hook input priority 0; tcp sport 80 tcp flags & (psh | fin) != 0 drop; }; }")
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
