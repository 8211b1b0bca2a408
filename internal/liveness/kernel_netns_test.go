package liveness

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// long is what an answer may take on a busy machine, short what silence is given.
const (
	long  = 30 * time.Second
	short = 200 * time.Millisecond
)

func TestKernelAnswers(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", far, "eth0")
		node.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64")
		far.AddAddress("eth0", "192.0.2.2/24", "2001:db8::2/64")
		nobody := netip.MustParseAddrPort("192.0.2.3:80")
		ask := func(what string, want bool, addresses ...netip.AddrPort) {
			t.Helper()
			within := long
			if !want {
				within = short
			}
			if got := kernelAnswers(t.Context(), within, addresses...); got != want {
				t.Errorf("%s: %t, want %t", what, got, want)
			}
		}
		for _, host := range []string{"192.0.2.2", "2001:db8::2"} {
			closed := netip.AddrPortFrom(netip.MustParseAddr(host), 81)
			ask("nobody listens", true, closed)
			far.Do(func() {
				// It never accepts, as a program that hangs.
				l, err := net.Listen("tcp", fmt.Sprintf("[%s]:82", host))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { l.Close() })
			})
			hung := netip.AddrPortFrom(closed.Addr(), 82)
			ask("a program hangs", true, hung)
			ask("one of two addresses", true, nobody, closed)
		}
		ask("nobody has the address", false, nobody)
		ask("there is no route", false, netip.MustParseAddrPort("198.51.100.1:80"))
		ask("no address", false)
		far.SetDown("eth0")
		ask("it is off", false, netip.MustParseAddrPort("192.0.2.2:81"), netip.MustParseAddrPort("[2001:db8::2]:82"))
	})
}

// TestKernelAnswersDropped: if one port is blocked, the other one shows that the node lives.
func TestKernelAnswersDropped(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", far, "eth0")
		node.AddAddress("eth0", "192.0.2.1/24")
		far.AddAddress("eth0", "192.0.2.2/24")
		far.Output("nft", "add table inet t; add chain inet t in { type filter hook input priority 0; }; add rule inet t in tcp dport 7947 drop")
		blocked, open := netip.MustParseAddrPort("192.0.2.2:7947"), netip.MustParseAddrPort("192.0.2.2:10250")
		if kernelAnswers(t.Context(), short, blocked) {
			t.Error("the blocked port answers: the test shows nothing")
		}
		if !kernelAnswers(t.Context(), long, blocked, open) {
			t.Error("the open port does not answer")
		}
	})
}
