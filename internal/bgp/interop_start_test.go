package bgp

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// A new session is dialled at once: GoBGP alone would wait for 1.5 s at least. The best of the times counts, because a busy machine
// only adds to them.
func TestInteropStart(t *testing.T) {
	t.Parallel()
	nstest.Run(t, func(t *testing.T) {
		l := newLab(t)
		times := map[string][]time.Duration{}
		for range 12 {
			s, stop := run(t)
			begin := time.Now()
			set(t, s, desire(l.peers(), l.routes()...))
			up := map[string]bool{}
			nstest.Until(t, patience, "all sessions are up", func() bool {
				for _, one := range s.Sessions() {
					if one.State == lb.Established && !up[one.Peer] {
						up[one.Peer] = true
						times[one.Peer] = append(times[one.Peer], time.Since(begin).Round(time.Millisecond))
					}
				}
				return len(up) == len(l.peers())
			})
			l.up(t)
			stop()
		}
		for _, name := range slices.Sorted(maps.Keys(times)) {
			all := slices.Sorted(slices.Values(times[name]))
			t.Logf("%s is up after %v, median of %d, %v at best, %v at worst", name, all[len(all)/2], len(all), all[0], all[len(all)-1])
			if all[0] >= 1500*time.Millisecond {
				t.Errorf("%s is up after %v at best", name, all[0])
			}
		}
	})
}
