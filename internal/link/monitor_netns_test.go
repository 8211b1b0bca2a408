package link

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// within is far more than any event takes, and far less than the reread interval.
const within = 30 * time.Second

var must = nstest.Must

// running starts a Monitor that hardly ever rereads, so that only events wake it.
func running(t *testing.T) (m *Monitor, kicks *atomic.Int64) {
	kicks = new(atomic.Int64)
	m = New(slog.New(slog.DiscardHandler), func() { kicks.Add(1) })
	m.rereadInterval = time.Hour
	return m, kicks
}

func start(t *testing.T, m *Monitor) {
	nstest.Running(t, m.Run)
	nstest.Until(t, within, "synced", m.Synced)
}

func find(m *Monitor, name string) lb.Interface {
	links := m.Links()
	i := slices.IndexFunc(links, func(l lb.Interface) bool { return l.Name == name })
	if i < 0 {
		return lb.Interface{}
	}
	return links[i]
}

func TestMonitorFollowsTheKernel(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		m, kicks := running(t)
		start(t, m)
		if lo := find(m, "lo"); !lo.Loopback || !lo.Up || lo.Usable() {
			t.Errorf("loopback is %+v", lo)
		}

		nstest.Veth(t, node, "eth0", far, "eth0")
		nstest.Until(t, within, "new link", func() bool { return find(m, "eth0").Usable() })
		if got, want := find(m, "eth0").MAC.String(), node.MAC("eth0").String(); got != want {
			t.Errorf("MAC is %s, want %s", got, want)
		}

		node.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64")
		nstest.Until(t, within, "addresses", func() bool {
			p := find(m, "eth0").Prefixes
			return slices.Contains(p, netip.MustParsePrefix("192.0.2.1/24")) &&
				slices.Contains(p, netip.MustParsePrefix("2001:db8::1/64"))
		})
		nstest.Until(t, within, "link-local address, once it is no longer tentative", func() bool {
			return find(m, "eth0").LinkLocal().IsValid()
		})

		node.Output("ip", "link", "set", "eth0", "address", "02:53:00:00:00:09")
		nstest.Until(t, within, "new MAC", func() bool { return find(m, "eth0").MAC.String() == "02:53:00:00:00:09" })

		far.SetDown("eth0")
		nstest.Until(t, within, "carrier lost", func() bool { return !find(m, "eth0").Up })
		far.SetUp("eth0")
		nstest.Until(t, within, "carrier back", func() bool { return find(m, "eth0").Up })

		node.Bridge("br0", "eth0")
		nstest.Until(t, within, "port of a bridge", func() bool {
			l := find(m, "eth0")
			return l.Port && !l.CanAnnounce()
		})
		nstest.Until(t, within, "a bridge of a veth pair", func() bool { return find(m, "br0").NoClients })
		node.Output("ip", "link", "add", "vx0", "type", "vxlan", "id", "7", "dstport", "4789")
		node.Output("ip", "link", "set", "vx0", "master", "br0")
		nstest.Until(t, within, "a bridge of other links too", func() bool {
			l := find(m, "br0")
			return l.Index != 0 && !l.NoClients
		})
		node.Delete("br0")
		nstest.Until(t, within, "no longer a port", func() bool { return find(m, "eth0").CanAnnounce() })

		index := find(m, "eth0").Index
		node.Delete("eth0")
		nstest.Until(t, within, "gone", func() bool { return find(m, "eth0").Index == 0 })
		nstest.Veth(t, node, "eth0", far, "eth0")
		nstest.Until(t, within, "recreated", func() bool { l := find(m, "eth0"); return l.Index != index && l.Up })
		if kicks.Load() < 8 {
			t.Errorf("kicked %d times", kicks.Load())
		}
	})
}

func TestMonitorVRF(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", far, "eth0")
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "red"
		if err := node.Netlink().LinkAdd(&netlink.Vrf{LinkAttrs: attrs, Table: 10}); err != nil {
			t.Skipf("no VRF in this kernel: %v", err)
		}
		node.SetUp("red")
		node.Enslave("eth0", "red")
		links, err := read()
		must(t, err)
		i := slices.IndexFunc(links, func(l lb.Interface) bool { return l.Name == "eth0" })
		if l := links[i]; l.Port || !l.Usable() {
			t.Errorf("the link of a VRF is %+v", l)
		}
	})
}

// A broken subscription is replaced, and changes in the meantime are read.
func TestMonitorHeals(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		m, _ := running(t)
		m.retryInterval = time.Millisecond
		breaks := make(chan context.CancelFunc, 2)
		m.listen = func(ctx context.Context, wake lb.Signal) error {
			ctx, stop := context.WithCancel(ctx)
			breaks <- stop
			return listen(ctx, wake)
		}
		start(t, m)
		(<-breaks)()
		<-breaks
		nstest.Veth(t, node, "eth0", far, "eth0")
		nstest.Until(t, within, "new link", func() bool { return find(m, "eth0").Up })
	})
}

// A failed read keeps the last snapshot and is retried without an event.
func TestMonitorKeepsLastReading(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m, kicks := running(t)
		m.retryInterval = time.Millisecond
		var reads atomic.Int64
		m.read = func() ([]lb.Interface, error) {
			switch n := reads.Add(1); n {
			case 1, 2:
				return nil, errors.New("dump interrupted")
			default:
				return read()
			}
		}
		start(t, m)
		if len(m.Links()) != 1 || kicks.Load() != 1 {
			t.Errorf("links %v after %d kicks", m.Links(), kicks.Load())
		}
	})
}
