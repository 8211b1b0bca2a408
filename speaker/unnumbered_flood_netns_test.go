package main

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// birdAdvertises itself, and speaks no BGP.
const birdAdvertises = `
log stderr all;
router id 192.0.2.3;
protocol device {}
protocol radv { interface "eth0" { max ra interval 4; default lifetime 0; }; }
`

// A router that is not heard, while another one is, keeps its session. When that has ended the other one is taken.
func TestUnnumberedKeepsRouter(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		self, ns, other := nstest.Self(t), nstest.New(t), nstest.New(t)
		nstest.Veth(t, self, "eth0", ns, "a")
		nstest.Veth(t, other, "eth0", ns, "b")
		ns.Bridge("eth0", "a", "b")
		n := startUnnumbered(t, lb.Peer{
			Name: "r", Interface: "eth0", DualStack: true, LocalASN: 4200000000, PeerASN: 65001, HoldTime: 9 * time.Second, ConnectTime: time.Second,
		})
		router := startFRR(t, ns, strings.Replace(frrUnnumbered, " neighbor eth0 bfd profile fast\n", "", 1))
		n.until("r", "the session is up", established)
		since := n.session("r").Since

		ns.Output("nft", "add table ip6 drowned; add chain ip6 drowned out { type filter hook output priority 0; }; add rule ip6 drowned out icmpv6 type "+
			"nd-router-advert drop")
		nstest.StartBIRD(t, other, birdAdvertises)
		nstest.Until(t, patience, "the other router is said", func() bool {
			return strings.HasSuffix(n.finder.Found("eth0").Problem, linkLocal(t, other).String()+"; it should have one")
		})
		began := time.Now()
		nstest.Until(t, 2*patience, "longer than it takes until the silent one is asked in vain", func() bool {
			if s := n.session("r"); !established(s) || !s.Since.Equal(since) {
				t.Fatalf("the session ended: %+v", s)
			}
			return time.Since(began) > 35*time.Second
		})

		router.Kill()
		n.until("r", "the session ends with the router", func(s bgp.Session) bool { return !established(s) })
		nstest.Until(t, 2*patience, "the other router is the link's", func() bool {
			return n.finder.Found("eth0").Address == linkLocal(t, other).WithZone("eth0")
		})
	})
}
