package relay

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/kubeproxy"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ends closes connections in the orderly way and fails the test unless the other end does too. Conntrack calls a
// FIN on a connection that it does not know invalid.
func ends(t *testing.T, list []net.Conn) {
	t.Helper()
	for _, c := range list {
		must(t, c.(*net.TCPConn).CloseWrite())
	}
	for _, c := range list {
		_ = c.SetDeadline(time.Now().Add(patient))
		if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
			t.Errorf("connection of %s ends with %q, %v", c.LocalAddr(), rest, err)
		}
	}
}

// TestConnectionsSurvive: connections that were opened by way of the former owner go on when the client
// takes the new one for the owner. Without relays they all break.
func TestConnectionsSurvive(t *testing.T) {
	for name, relayed := range map[string]bool{"relayed": true, "not relayed": false} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				w := newWorld(t)
				w.serve()
				w.owner(w.former)
				open := w.connections(100)
				nstest.Running(t, w.relayer.Run)
				want := 0
				if relayed {
					w.relayer.Set(w.desired())
					want = 100
				}
				w.owner(w.node)
				for vip, list := range open {
					if n := w.alive(list); n != want {
						t.Errorf("%s: of %d connections %d are alive, want %d", vip, len(list), n, want)
					}
					if relayed {
						ends(t, list)
					}
				}
				// New connections are this node's own, and their packets too.
				before := w.relayer.State()
				w.allAlive(w.connections(10))
				for i, f := range w.relayer.State().Families {
					if relayed && f.Packets == 0 || f.Packets != before.Families[i].Packets {
						t.Errorf("%s: %d packets relayed, then %d", f.Family, before.Families[i].Packets, f.Packets)
					}
				}
			})
		})
	}
}

// TestTransfersSurvive: what is on its way in both directions while the address moves arrives, whole,
// whatever the links do with large segments.
func TestTransfersSurvive(t *testing.T) {
	for _, offload := range []string{"on", "off"} {
		t.Run("offload "+offload, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				if _, err := exec.LookPath("ethtool"); err != nil {
					t.Skip("no ethtool here")
				}
				w := newWorld(t)
				w.serve()
				w.owner(w.former)
				// The client sends large segments, or the node merges small ones: then what it relays has to be parted
				// again.
				w.client.Output("ethtool", "-K", "eth0", "tso", offload, "gso", offload)
				w.node.Output("ethtool", "-K", "eth0", "gro", "on", "tso", offload, "gso", offload)
				nstest.Running(t, w.relayer.Run)
				w.relayer.Set(w.desired())
				const size, moves = 64 << 20, 1 << 20 // more than all buffers hold
				for _, vip := range vips {
					w.owner(w.former)
					c := w.dial(vip)
					_ = c.SetDeadline(time.Now().Add(time.Minute))
					sent := make([]byte, size)
					if _, err := rand.Read(sent); err != nil {
						t.Fatal(err)
					}
					go func() { _, _ = c.Write(sent) }() // what is lost is missed below
					got := make([]byte, size)
					if _, err := io.ReadFull(c, got[:moves]); err != nil {
						t.Fatal(err)
					}
					w.owner(w.node)
					if _, err := io.ReadFull(c, got[moves:]); err != nil || !bytes.Equal(sent, got) {
						t.Errorf("%s: %v, the same came back: %v", vip, err, bytes.Equal(sent, got))
					}
				}
				for i, n := range w.packets() {
					if n < 100 {
						t.Errorf("%s: %d packets relayed", families()[i].name, n)
					}
				}
			})
		})
	}
}

// TestLoopEnds: where a speaker's MAC is not known, the time to live of a packet ends what would be a loop.
func TestLoopEnds(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.owner(w.node)
		nstest.Running(t, w.relayer.Run)
		d := w.desired()
		d.Speakers = nil
		w.relayer.Set(d)
		w.mirror()
		for _, vip := range vips {
			w.stray(vip)
		}
		const hops = 64 // as Linux sends it
		last := w.packets()
		nstest.Until(t, patient, "the strays go round no more", func() bool {
			before := last
			last = w.packets()
			return last[0] > 1 && last[1] > 1 && slices.Equal(before, last)
		})
		if last[0] > hops || last[1] > hops {
			t.Errorf("one stray of each family was relayed %v times", last)
		}
	})
}

// TestNoLoop: what a speaker's node sends is never relayed, even where both nodes take the
// other for the former owner.
func TestNoLoop(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.owner(w.node)
		nstest.Running(t, w.relayer.Run)
		w.relayer.Set(w.desired())
		w.mirror()
		for _, vip := range vips {
			w.stray(vip)
		}
		nstest.Until(t, patient, "strays are relayed", func() bool { n := w.packets(); return n[0] > 0 && n[1] > 0 })
		// The other node has them too by now, for it answers them with a reset by way of the pod, or lets them be.
		for _, vip := range vips {
			w.stray(vip)
		}
		nstest.Until(t, patient, "more strays are relayed", func() bool { n := w.packets(); return n[0] > 1 && n[1] > 1 })
		if n := w.packets(); n[0] != 2 || n[1] != 2 {
			t.Errorf("of 2 strays of each family %v were relayed", n)
		}
		for _, family := range []string{"ip", "ip6"} {
			got := w.former.Output("nft", "list", "chain", family, tableName, connectionsChain)
			if !strings.Contains(got, "counter packets 0 ") {
				t.Errorf("the other node has relayed what came from a speaker:\n%s", got)
			}
		}
	})
}

// TestUnknown: what is of no connection of this node is handed on whatever it is.
func TestUnknown(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.owner(w.node)
		nstest.Running(t, w.relayer.Run)
		w.relayer.Set(w.desired())
		for i, flags := range []byte{tcpACK, tcpACK | tcpFIN, tcpRST, tcpACK | tcpRST} {
			for _, vip := range vips {
				w.segment(vip, 50000, 0, flags)
			}
			want := uint64(i + 1)
			nstest.Until(t, patient, fmt.Sprintf("segments with the flags %#x are relayed", flags), func() bool {
				n := w.packets()
				return n[0] == want && n[1] == want
			})
		}
	})
}

// TestOutOfWindow: a segment outside of the window of a connection that this node serves is not the former owner's, who
// would start it again and have the endpoint reset it.
func TestOutOfWindow(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		w.owner(w.node)
		nstest.Running(t, w.relayer.Run)
		w.relayer.Set(w.desired())
		w.node.Output("nft", fmt.Sprintf(`
table inet behind {
	counter invalid4 { }
	counter invalid6 { }
	chain c {
		type filter hook prerouting priority %d
		ct state invalid ip daddr %s counter name "invalid4"
		ct state invalid ip6 daddr %s counter name "invalid6"
	}
}`, connectionsPriority+1, vip4, vip6))
		open := w.connections(1)
		for vip, list := range open {
			from := list[0].LocalAddr().(*net.TCPAddr).Port
			for quarter := range uint32(4) { // of the sequence space: some are above every window
				w.segment(vip, uint16(from), quarter<<30, tcpACK)
			}
		}
		for _, family := range []string{"4", "6"} {
			nstest.Until(t, patient, "what is outside of the window is not handed on, IPv"+family, func() bool {
				got := w.node.Output("nft", "list", "counter", "inet", "behind", "invalid"+family)
				return !strings.Contains(got, "packets 0 ")
			})
		}
		w.allAlive(open)
		if n := w.packets(); n[0] != 0 || n[1] != 0 {
			t.Errorf("%v packets of this node's connections were relayed", n)
		}
	})
}

// TestErrors: errors about connections of the former owner reach it, so that it learns of a path's MTU.
func TestErrors(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		w.owner(w.former)
		w.former.Output("nft", `
table inet seen {
	counter errors { }
	chain c { type filter hook prerouting priority 0; ct state related counter name "errors"; }
}`)
		open := w.connections(1)
		nstest.Running(t, w.relayer.Run)
		w.relayer.Set(w.desired())
		w.owner(w.node)
		for _, vip := range vips {
			w.tooBig(open[vip][0])
		}
		nstest.Until(t, patient, "both errors reach the former owner, who knows what they are about", func() bool {
			return strings.Contains(w.former.Output("nft", "list", "counters"), "packets 2 ")
		})
		// A ping is no error, and served here.
		before := w.packets()
		w.client.Output("ping", "-c", "1", "-W", "2", node4)
		if got := w.packets(); !slices.Equal(got, before) {
			t.Errorf("%v packets relayed, then %v", before, got)
		}
	})
}

// timeWaits counts the connections that the node knows as ended.
func timeWaits(t *testing.T) (n int) {
	t.Helper()
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		must(t, err)
		for _, f := range flows {
			if tcp, ok := f.ProtoInfo.(*netlink.ProtoInfoTCP); ok && tcp.State == nl.TCP_CONNTRACK_TIME_WAIT {
				n++
			}
		}
	}
	return n
}

// TestPortReused: an address comes back while conntrack still has ended connections of it. Connections of the same
// ports that clients opened meanwhile by way of the former owner go on.
func TestPortReused(t *testing.T) {
	for name, swept := range map[string]bool{"forgotten": true, "not forgotten": false} {
		wait := map[bool]time.Duration{true: patient, false: silent}[swept]
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				w := newWorld(t)
				w.serve()
				w.client.Sysctl("ipv4/tcp_max_tw_buckets", "0") // a port is free at once
				nstest.Running(t, w.relayer.Run)
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
						must(t, err)
						defer list[i].Close()
						must(t, talk(list[i], patient))
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
