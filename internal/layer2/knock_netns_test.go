package layer2

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestKnock with real kernels at both ends: a port with a listener, one without, one that a filter drops and one that it rejects. The
// machine keeps no connection, even where a firewall here takes its answer from the kernel.
func TestKnock(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLAN(t)
		nstest.Until(t, within, "links known", func() bool { return len(l.first.links()) > 0 })
		us := l.first.links()[len(l.first.links())-1]
		mac := lb.MACFrom(l.far.MAC("eth0"))
		l.far.AddAddress("eth0", v4.String()+"/24", v6.String()+"/64")
		l.far.Do(func() {
			listener, err := net.Listen("tcp", ":80")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { listener.Close() })
		})
		l.far.Output("nft", "add table inet f; add chain inet f in { type filter hook input priority 0; }; add rule inet f in tcp dport 82 drop; "+
			"add rule inet f in tcp dport 83 reject with icmpx port-unreachable")
		l.node.Output("nft", "add table inet f; add chain inet f in { type filter hook input priority 0; }; add rule inet f in tcp flags syn,ack drop")
		for _, a := range []netip.Addr{v4, v6} {
			for port, want := range map[uint16]Answer{80: Open, 81: Refused, 82: Silent, 83: Rejected} {
				start := time.Now()
				got, err := l.first.Knock(t.Context(), us, mac, netip.AddrPortFrom(a, port), time.Second)
				if took := time.Since(start); err != nil || got != want || (took >= time.Second) != (want == Silent) {
					t.Errorf("%s port %d: %q, %v after %v", a, port, got, err, took)
				}
			}
		}
		nstest.Until(t, within, "no half-open connection", func() bool {
			return l.far.Output("ss", "-Htn", "state", "syn-recv") == ""
		})
		if got, err := l.first.Knock(t.Context(), us, mac, netip.MustParseAddrPort("203.0.113.1:80"), time.Second); err == nil {
			t.Errorf("beyond the subnet: %q", got)
		}
	})
}

// TestKnockParse: what is about other ports, other addresses, or cut short, is no answer.
func TestKnockParse(t *testing.T) {
	for _, addrs := range [][2]string{{"192.0.2.1", "192.0.2.9"}, {"2001:db8::1", "2001:db8::9"}} {
		from, to := netip.AddrPortFrom(netip.MustParseAddr(addrs[0]), 40000), netip.AddrPortFrom(netip.MustParseAddr(addrs[1]), 80)
		k := knock{lb.Interface{}, lb.MAC{}, from, to, 0x0800, 1, 23, 20}
		if to.Addr().Is6() {
			k.etherType, k.icmp, k.offProtocol, k.ipLen = 0x86dd, 58, 20, ipv6Len
		}
		reply := func(from, to netip.AddrPort, flags byte) []byte {
			other := k
			other.from, other.to = from, to
			return other.segment(7, flags)
		}
		elsewhere := netip.AddrPortFrom(to.Addr().Next(), 80)
		for _, tt := range []struct {
			frame []byte
			want  Answer
		}{
			{reply(to, from, flagSYN|flagACK), Open},
			{reply(to, from, flagRST|flagACK), Refused},
			{reply(to, from, flagACK), ""},
			{reply(to, from, flagSYN), ""},
			{reply(elsewhere, from, flagSYN|flagACK), ""},
			{reply(netip.AddrPortFrom(to.Addr(), 81), from, flagRST), ""},
			{reply(to, netip.AddrPortFrom(from.Addr(), 40001), flagRST), ""},
			{reply(from, to, flagSYN|flagACK), ""},
		} {
			if got := k.parse(tt.frame); got != tt.want {
				t.Errorf("%x: %q, not %q", tt.frame, got, tt.want)
			}
			for n := range len(tt.frame) {
				if got := k.parse(tt.frame[:n]); got != "" {
					t.Errorf("%d bytes: %q", n, got)
				}
			}
		}
	}
}
