package relay

import (
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// timeWaits counts the connections that the node knows as ended.
func timeWaits(t *testing.T) (n int) {
	t.Helper()
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range flows {
			if tcp, ok := f.ProtoInfo.(*netlink.ProtoInfoTCP); ok && tcp.State == nl.TCP_CONNTRACK_TIME_WAIT {
				n++
			}
		}
	}
	return n
}

// An address comes back while conntrack still has ended connections of it. Connections of the same ports that clients opened
// meanwhile by way of the former owner go on.
func TestPortReused(t *testing.T) {
	for name, swept := range map[string]bool{"forgotten": true, "not forgotten": false} {
		wait := map[bool]time.Duration{true: patient, false: silent}[swept]
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				w := newWorld(t)
				w.serve()
				w.client.Sysctl("ipv4/tcp_max_tw_buckets", "0") // a port is free at once
				w.run(w.relayer)
				w.owner(w.node)
				const each = 3
				open := w.connections(each)
				for _, list := range open {
					ends(t, list)
				}
				nstest.Until(t, patient, "all have ended", func() bool { return timeWaits(t) == each*len(vips) })

				w.owner(w.former)
				for _, list := range open {
					for i, c := range list {
						c.Close()
						var err error
						w.client.Do(func() {
							list[i], err = (&net.Dialer{Timeout: patient, LocalAddr: c.LocalAddr()}).Dial("tcp", c.RemoteAddr().String())
						})
						if err != nil {
							t.Fatal(err)
						}
						defer list[i].Close()
						if err := talk(list[i], patient); err != nil {
							t.Fatal(err)
						}
					}
				}
				start := time.Now()
				if swept {
					sweeper := kubeproxy.NewSweeper(testLog(t))
					go func() { _ = sweeper.Run(t.Context()) }()
					sweeper.Relay(w.since(start).Relays, start)
					nstest.Until(t, patient, "ended connections are forgotten", func() bool { return timeWaits(t) == 0 })
				}
				w.relayer.Set(w.since(start))
				w.owner(w.node)
				for vip, list := range open {
					lost := 0
					for _, c := range list {
						if talk(c, wait) != nil {
							lost++
						}
					}
					if swept && lost > 0 || !swept && lost == 0 {
						t.Errorf("%s: of %d connections %d are lost", vip, each, lost)
					}
				}
			})
		})
	}
}
