package bfd

import (
	"testing"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

const frrBGPConfig = `
frr defaults traditional
bfd
 profile fast
  receive-interval 120
  transmit-interval 80
  detect-multiplier 20
router bgp 65001
 bgp router-id 192.0.2.2
 no bgp ebgp-requires-policy
 neighbor 192.0.2.1 remote-as 65000
 neighbor 192.0.2.1 bfd profile fast
 neighbor 2001:db8:1::1 remote-as 65000
 neighbor 2001:db8:1::1 bfd profile fast
`

const birdBGPConfig = `
log stderr all;
router id 192.0.2.2;
protocol device {}
protocol bfd { interface "lan" { min rx interval 120 ms; min tx interval 80 ms; multiplier 20; }; }
protocol bgp node4 { local 192.0.2.2 as 65001; neighbor 192.0.2.1 as 65000; bfd on; ipv4 { import all; export none; }; }
protocol bgp node6 { local 2001:db8:1::2 as 65001; neighbor 2001:db8:1::1 as 65000; bfd on; ipv6 { import all; export none; }; }
`

// Our BGP waits for BFD. That ends only if the router's BFD does not wait for BGP.
func TestFRRBeginsWithoutBGP(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		connect(t, self, ns, nstest.New(t))
		n := startNode(t)
		n.Set(append(only("v4"), only("v6")...))
		startFRR(t, ns, frrBGPConfig, "bgpd")
		n.until("sessions that FRR's BGP asked for are up", func() bool { return n.status("v4").State == Up && n.status("v6").State == Up })
	})
}

func TestBIRDBeginsWithoutBGP(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		self, ns := nstest.Self(t), nstest.New(t)
		connect(t, self, ns, nstest.New(t))
		n := startNode(t)
		n.Set(append(only("v4"), only("v6")...))
		startBIRD(t, ns, birdBGPConfig)
		n.until("sessions that BIRD's BGP asked for are up", func() bool { return n.status("v4").State == Up && n.status("v6").State == Up })
	})
}
