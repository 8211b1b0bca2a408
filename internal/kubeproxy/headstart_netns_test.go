package kubeproxy

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const (
	client4, client6 = "198.51.100.2", "2001:db8:c::2"
	node4, node6     = "198.51.100.1", "2001:db8:c::1"
	vip4, vip6       = "192.0.2.10", "2001:db8:f::10"
)

// pods have these addresses; each sees the node as the next lower one.
var pods = [][2]string{{"10.244.0.2", "fd00::2"}, {"10.244.1.2", "fd00:1::2"}, {"10.244.2.2", "fd00:2::2"}}

// startWorld is a node with three pods behind it and a client before it.
type startWorld struct {
	t            *testing.T
	node, client *nstest.NS
	table        *HeadStart
}

func newStartWorld(t *testing.T) *startWorld {
	w := &startWorld{t: t, node: nstest.Self(t), table: NewHeadStart(slog.New(slog.NewTextHandler(t.Output(), nil)))}
	w.node.Sysctl("ipv4/ip_forward", "1")
	w.node.Sysctl("ipv6/conf/all/forwarding", "1")
	w.client = w.node.Attach("eth0", []string{node4 + "/24", node6 + "/64"}, client4+"/24", client6+"/64")
	// A packet that is not translated comes back to the client, which drops it.
	w.node.AddDefault(client4, client6)
	for i, a := range pods {
		gateway4, gateway6 := netip.MustParseAddr(a[0]).Prev().String(), netip.MustParseAddr(a[1]).Prev().String()
		pod := w.node.Attach(fmt.Sprint("pod", i), []string{gateway4 + "/24", gateway6 + "/64"}, a[0]+"/24", a[1]+"/64")
		w.serve(pod, fmt.Sprint(i))
	}
	return w
}

// serve answers each line with the name of the pod and the address of its client, by TCP and UDP on port 8080.
func (w *startWorld) serve(pod *nstest.NS, name string) {
	var p net.PacketConn
	var err error
	pod.Do(func() { p, err = net.ListenPacket("udp", ":8080") })
	must(w.t, err)
	w.t.Cleanup(func() { p.Close() })
	say := func(from net.Addr) []byte {
		return []byte(name + " " + netip.MustParseAddrPort(from.String()).Addr().Unmap().String())
	}
	pod.Serve(":8080", func(c net.Conn) {
		buffer := make([]byte, 64)
		for {
			if _, err := c.Read(buffer); err != nil {
				return
			}
			if _, err := c.Write(say(c.RemoteAddr())); err != nil {
				return
			}
		}
	})
	go func() {
		buffer := make([]byte, 64)
		for {
			_, from, err := p.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = p.WriteTo(say(from), from)
		}
	}()
}

func (w *startWorld) dial(from *nstest.NS, network, vip string, wait time.Duration) (c net.Conn, err error) {
	from.Do(func() { c, err = net.DialTimeout(network, net.JoinHostPort(vip, "80"), wait) })
	return c, err
}

// ask sends a line and returns the answer.
func ask(c net.Conn, wait time.Duration) (string, error) {
	_ = c.SetDeadline(time.Now().Add(wait))
	if _, err := c.Write([]byte("who")); err != nil {
		return "", err
	}
	buffer := make([]byte, 64)
	n, err := c.Read(buffer)
	return string(buffer[:n]), err
}

// fetch returns the answer of a new connection, or "nothing".
func (w *startWorld) fetch(from *nstest.NS, network, vip string, wait time.Duration) string {
	c, err := w.dial(from, network, vip, wait)
	if err != nil {
		return "nothing"
	}
	defer c.Close()
	answer, err := ask(c, wait)
	if err != nil {
		return "nothing"
	}
	return answer
}

// endpoints are how many pods have a port.
var endpoints = map[string]int{"tcp": 1, "udp": 3}

// starts are TCP and UDP port 80 of both addresses.
func starts(masquerade bool) []lb.Start {
	var out []lb.Start
	for family, vip := range []string{vip4, vip6} {
		for _, protocol := range []string{"TCP", "UDP"} {
			s := lb.Start{Address: netip.MustParseAddr(vip), Protocol: protocol, Port: 80, Masquerade: masquerade}
			for _, pod := range pods[:endpoints[strings.ToLower(protocol)]] {
				s.Endpoints = append(s.Endpoints, netip.AddrPortFrom(netip.MustParseAddr(pod[family]), 8080))
			}
			out = append(out, s)
		}
	}
	return out
}

const (
	brief   = 150 * time.Millisecond
	patient = 5 * time.Second
)

// TestHeadStart: new addresses are served by their endpoints, from outside and from the node, as the client or as the
// node.
func TestHeadStart(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newStartWorld(t)
		if got := w.fetch(w.client, "tcp", vip4, brief); got != "nothing" {
			t.Fatalf("before anything was set: %s", got)
		}
		for _, masquerade := range []bool{true, false} {
			w.table.Set(starts(masquerade))
			if got := w.node.Output("nft", "list", "tables"); !strings.Contains(got, headStartTable) {
				t.Errorf("nft lists no table: %s", got)
			}
			for family, vip := range []string{vip4, vip6} {
				for _, network := range []string{"tcp", "udp"} {
					seen := map[string]bool{}
					nstest.Until(t, patient, "answers of all pods", func() bool {
						answer := w.fetch(w.client, network, vip, patient)
						pod, from, _ := strings.Cut(answer, " ")
						want := []string{client4, client6}[family]
						if masquerade && len(pod) == 1 {
							want = netip.MustParseAddr(pods[pod[0]-'0'][family]).Prev().String()
						}
						if from != want {
							t.Fatalf("%s %s, masqueraded %v: %q, want one from %s", network, vip, masquerade, answer, want)
						}
						seen[pod] = true
						return len(seen) == endpoints[network]
					})
					if got := w.fetch(w.node, network, vip, patient); got == "nothing" {
						t.Errorf("%s %s from the node: nothing", network, vip)
					}
				}
			}
		}
		w.table.Set(nil)
		if got := w.fetch(w.client, "tcp", vip4, brief); got != "nothing" {
			t.Errorf("after all was taken back: %s", got)
		}
		if got := w.node.Output("nft", "list", "tables"); strings.Contains(got, headStartTable) {
			t.Errorf("a table is left: %s", got)
		}
	})
}

// TestHeadStartEnds: what kube-proxy serves is kube-proxy's from the first connection on, and no open connection
// breaks, neither then nor when the table goes.
func TestHeadStartEnds(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newStartWorld(t)
		w.table.Set(starts(true))
		open := map[string]net.Conn{}
		for _, vip := range []string{vip4, vip6} {
			c, err := w.dial(w.client, "tcp", vip, patient)
			must(t, err)
			defer c.Close()
			open[vip] = c
		}
		w.node.Output("nft", fmt.Sprintf(`table inet kube-proxy {
	chain nat { type nat hook prerouting priority -100
		ip daddr %s tcp dport 80 dnat ip to %s:8080
		ip6 daddr %s tcp dport 80 dnat ip6 to [%s]:8080
	}
}`, vip4, pods[2][0], vip6, pods[2][1]))
		for _, gone := range []bool{false, true} {
			if gone {
				w.table.Set(nil)
			}
			for vip, c := range open {
				if got := w.fetch(w.client, "tcp", vip, patient); !strings.HasPrefix(got, "2 ") {
					t.Errorf("%s, taken back %v: a new connection got %q, want kube-proxy's pod", vip, gone, got)
				}
				if got, err := ask(c, patient); err != nil || strings.HasPrefix(got, "2 ") {
					t.Errorf("%s, taken back %v: the open connection: %q, %v", vip, gone, got, err)
				}
			}
		}
	})
}

// TestHeadStartDamage: what another program deletes comes back with the next new address and not before, and what a
// dead process left goes.
func TestHeadStartDamage(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newStartWorld(t)
		w.table.Set(starts(true)[:1])
		w.node.Output("nft", "flush", "ruleset")
		w.table.Set(starts(true)[:1])
		if got := w.node.Output("nft", "list", "tables"); strings.Contains(got, headStartTable) {
			t.Errorf("the table is back, which may lead packets past a filter that is not: %s", got)
		}
		claimed := starts(true) // each frontend by two Services
		for _, other := range starts(true) {
			other.Endpoints = other.Endpoints[1:]
			claimed = append(claimed, other)
		}
		w.table.Set(claimed)
		if got := w.fetch(w.client, "tcp", vip6, patient); got == "nothing" {
			t.Error("nothing answers after the table was deleted")
		}
		NewHeadStart(slog.New(slog.DiscardHandler)).Set(nil)
		if got := w.node.Output("nft", "list", "tables"); strings.Contains(got, headStartTable) {
			t.Errorf("a table is left: %s", got)
		}
		if err := w.table.Remove(); err != nil {
			t.Errorf("remove what is not there: %v", err)
		}
	})
}
