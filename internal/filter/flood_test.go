package filter

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestFlood: while an address comes and goes, its ranges change, another process takes over and the table is replaced,
// a flood from a source that may never come goes on: not one packet gets past, from the first filter on.
func TestFlood(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		const changes = 200
		w := newWorld(t)
		survivors := w.survivors()
		out := w.sender()
		w.set(desired())
		ctx, cancel := context.WithCancel(t.Context())
		var flood sync.WaitGroup
		var sent int
		flood.Go(func() {
			for ctx.Err() == nil {
				for _, f := range [][2]string{{stranger4, vip4}, {stranger6, vip6}} {
					out(packet(addr(f[0]), addr(f[1]), "TCP", 80, 1))
					out(packet(addr(f[0]), addr(f[1]), "UDP", 80, 1))
					sent += 2
				}
			}
		})
		roll := rand.New(rand.NewPCG(1, 2))
		for range changes {
			d := desired()
			if roll.IntN(4) > 0 {
				d.Guarded = nil // The address is guarded for its frontends' sake alone.
				for _, vip := range []string{vip4, vip6} {
					for _, protocol := range []string{"TCP", "UDP"} {
						d.Frontends = append(d.Frontends, lb.Frontend{
							Address: addr(vip), Protocol: protocol, Port: 80,
							Access: lb.Access{Restricted: roll.IntN(2) == 0, Allow: some(roll, addr(vip).Is6()),
								RateLimit: roll.IntN(3), ConnectionLimit: roll.IntN(3)}, Refuse: roll.IntN(9) == 0,
						})
						if frontend := &d.Frontends[len(d.Frontends)-1]; !frontend.Restricted {
							frontend.Deny = prefixes("198.51.100.2/31")
							if addr(vip).Is6() {
								frontend.Deny = prefixes("2001:db8:c::/64")
							}
							frontend.Deny = append(frontend.Deny, some(roll, addr(vip).Is6())...)
						}
					}
				}
			}
			if len(d.Frontends) > 0 && roll.IntN(10) == 0 {
				d.Frontends[0].ClusterIP = addr(cluster4)
			}
			if roll.IntN(10) == 0 {
				w.table = New(slog.New(slog.DiscardHandler), func() {})
			}
			w.set(d)
		}
		cancel()
		flood.Wait()
		out(packet(addr("198.18.0.1"), addr("203.0.113.255"), "UDP", 9, 2))
		if survivors(2)[1] {
			t.Errorf("of %d packets some came in", sent)
		}
		t.Logf("%d packets", sent)
	})
}

// some are ranges without the strangers.
func some(roll *rand.Rand, v6 bool) (list []netip.Prefix) {
	for i := range roll.IntN(6) {
		if v6 {
			list = append(list, netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 0xee, byte(i)}), 48))
		} else {
			list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{203, 0, byte(i), 0}), 24))
		}
	}
	return list
}

// TestLog: what a frontend refuses is logged where it asks for that, with the Service that it is of.
func TestLog(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		var mu sync.Mutex
		var lines strings.Builder
		w.table = New(slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return lines.Write(p)
		}), nil)), func() {})
		quiet := tcp(vip6)
		quiet.Restricted = true
		d := full()
		d.Frontends[2] = quiet
		w.set(d)
		nstest.Running(t, w.table.Run)
		nstest.Until(t, patient, "a drop is logged", func() bool {
			w.finds(silence, w.client, "tcp", stranger6, vip6, 80)
			w.finds(silence, w.client, "tcp", stranger4, vip4, 80)
			mu.Lock()
			defer mu.Unlock()
			return strings.Contains(lines.String(), "packet refused")
		})
		mu.Lock()
		defer mu.Unlock()
		for _, want := range []string{
			"service=ns/web", "reason=source", "source=" + stranger4, "address=" + vip4, "protocol=TCP", "port=80",
		} {
			if !strings.Contains(lines.String(), want) {
				t.Errorf("%s is not in the log:\n%s", want, lines.String())
			}
		}
		if strings.Contains(lines.String(), vip6) {
			t.Errorf("a drop without LogDrops is logged:\n%s", lines.String())
		}
	})
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

func FuzzParseHeader(f *testing.F) {
	f.Add(packet(addr(client4), addr(vip4), "TCP", 80, 1))
	f.Add(packet(addr(client6), addr(vip6), "UDP", 80, 1))
	f.Add([]byte{0x4f})
	f.Fuzz(func(t *testing.T, data []byte) {
		h, ok := parseHeader(data)
		if ok && (!h.from.IsValid() || h.from.BitLen() != h.to.BitLen()) {
			t.Errorf("%x: read as %+v", data, h)
		}
	})
}
