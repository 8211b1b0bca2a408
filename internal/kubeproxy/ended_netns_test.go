package kubeproxy

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// pair is a connection to the Service: the client's end and the endpoint's.
type pair struct{ client, endpoint *net.TCPConn }

// TestForgetEnded: connections that have ended are forgotten. What is open, half closed, or waits for the last data to come
// again, stays, and the client gets all of it.
func TestForgetEnded(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, w := range []attemptWorld{
			{"ip", 32, "192.0.2.1", "192.0.2.2", "198.51.100.1", "192.0.2.3", "192.0.2.4", "192.0.2.5"},
			{"ip6", 128, "2001:db8::1", "2001:db8::2", "2001:db8:1::1", "2001:db8::3", "2001:db8::4", "2001:db8::5"},
		} {
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
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(closed.endpoint.Close())
	_, err := io.ReadAll(closed.client)
	must(err)
	must(closed.client.Close())
	must(reset.client.SetLinger(0))
	must(reset.client.Close())
	must(half.client.CloseWrite())
	_, err = io.ReadAll(half.endpoint)
	must(err)

	// Both sides close, and the endpoint's last data does not arrive: it is sent again, or the client asks for a sign of life, and the
	// state is TIME_WAIT.
	must(unheard.client.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second}))
	must(unheard.client.CloseWrite())
	_, err = io.ReadAll(unheard.endpoint)
	must(err)
	client.Output("nft", "table inet deaf { chain c { type filter hook input priority 0; tcp sport 80 tcp flags & (psh | fin) != 0 drop; }; }")
	w.finish(t, unheard.endpoint)
	nstest.Until(t, long, "all are in their states", func() bool {
		n := w.states(t)
		return n[nl.TCP_CONNTRACK_TIME_WAIT] == 2 && n[nl.TCP_CONNTRACK_CLOSE] == 1
	})

	forget := func(address string) int {
		t.Helper()
		n, err := forgetEnded(map[netip.Addr]bool{netip.MustParseAddr(address): true})
		must(err)
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
		must(one.client.SetReadDeadline(time.Now().Add(long)))
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
	if err := endpoint.Close(); err != nil {
		t.Fatal(err)
	}
}

// pairs returns a function that connects to the Service.
func (w attemptWorld) pairs(t *testing.T, client, pods *nstest.NS) func() pair {
	var l net.Listener
	var err error
	pods.Do(func() { l, err = net.Listen("tcp", net.JoinHostPort(w.live, "80")) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return func() pair {
		var c, e net.Conn
		client.Do(func() { c, err = net.DialTimeout("tcp", net.JoinHostPort(w.service, "80"), long) })
		if err != nil {
			t.Fatal(err)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		if tcp, ok := f.ProtoInfo.(*netlink.ProtoInfoTCP); ok && f.Forward.DstIP.String() == w.service {
			n[tcp.State]++
		}
	}
	return n
}
