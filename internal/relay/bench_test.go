package relay

import (
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

// BenchmarkTakeOver: until so many new relays are in force beside those that are, as when so many addresses move here.
func BenchmarkTakeOver(b *testing.B) {
	for _, n := range []int{1, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			// Never unlocked: the thread ends with the goroutine and takes its namespace along. So Run, which
			// may be on any thread, does not run: its work is done here.
			runtime.LockOSThread()
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				b.Skipf("no network namespaces here: %v", err)
			}
			r := New(Config{
				Log:   slog.New(slog.DiscardHandler),
				Links: func() []link.Link { return []link.Link{{Index: 1, Name: "eth0", MAC: link.MAC{2}, Up: true}} },
			})
			d := Desired{Expect: true, Speakers: map[link.MAC]bool{{2}: true}}
			r.desired = &d
			r.apply()
			for b.Loop() {
				b.StopTimer()
				d.Relays = nil
				r.check()
				for i := range n {
					d.Relays = append(d.Relays, lb.Relay{
						Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Former: "former",
						Via: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Link: "eth0",
					})
				}
				b.StartTimer()
				r.apply()
			}
			if got := len(r.Inherited()); got != n {
				b.Fatalf("%d relays, not %d", got, n)
			}
		})
	}
}
