package heartbeat

import (
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// What does not know the key, or is no peer's, does not reach the thread; who has
// only seen its first word and a peer's address is refused; and none of these keeps
// peers from being heard.
func TestHostilePackets(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		a, b := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
		peers := []Peer{{"a", a, false}, {"b", b, false}}
		var speakers []*Heartbeat
		var deaths atomic.Int64
		for _, p := range peers {
			var h *Heartbeat
			h, err := New(Config{
				Log: slog.New(slog.DiscardHandler), NodeName: p.Name, Address: p.Address, Port: testPort, Keys: [][]byte{testKey},
				Timers: Timers{Multiplier: 200},
				Changed: func() {
					for _, m := range h.View().Members {
						if m.Status > Alive {
							deaths.Add(1)
						}
					}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			h.Set(peers)
			ended := make(chan error, 1)
			go func() { ended <- h.Run(t.Context()) }()
			t.Cleanup(func() {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
			speakers = append(speakers, h)
		}
		hears := func(h *Heartbeat) bool {
			alive := 0
			for _, m := range h.View().Members {
				if m.Status == Alive {
					alive++
				}
			}
			return alive == len(peers)
		}
		nstest.Until(t, within, "both hear each other", func() bool { return hears(speakers[0]) && hears(speakers[1]) })

		p := testPacket(3)
		forged := mustSeal(t, 1).close(nil, &p)
		seal, err := newSeal(testKey)
		if err != nil {
			t.Fatal(err)
		}
		genuine := seal.close(nil, &p)
		flood := func(from string, datagram []byte, times int) {
			conn, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(from)}, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, testPort)))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for range times {
				_, _ = conn.Write(datagram)
			}
		}
		rejected := &speakers[0].shared.rejected
		flood("127.0.0.2", forged, 20000)
		flood("127.0.0.3", genuine, 20000)
		if got := rejected.Load(); got != 0 {
			t.Errorf("%d packets without the word, or of nobody, reached the thread", got)
		}
		genuine[len(genuine)-1] ^= 1
		flood("127.0.0.2", genuine, 100)
		nstest.Until(t, within, "packets with the word are refused", func() bool { return rejected.Load() > 0 })
		nstest.Until(t, within, "both hear each other", func() bool { return hears(speakers[0]) && hears(speakers[1]) })
		if got := deaths.Load(); got != 0 {
			t.Errorf("%d times somebody was not alive", got)
		}
	})
}
