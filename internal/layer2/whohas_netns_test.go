package layer2

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestWhoHas with real kernels: the speaker that announces an address answers; with a foreign machine in conflict both do; none
// answers for an address that no machine has.
func TestWhoHas(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLAN(t)
		l.second.Set(l.here())
		owner, far := lb.MACFrom(l.other.MAC("eth0")), lb.MACFrom(l.far.MAC("eth0"))
		nstest.Until(t, within, "links known", func() bool { return len(l.first.links()) > 0 })
		us := l.first.links()[len(l.first.links())-1]
		expect := func(addrs []netip.Addr, want ...lb.MAC) {
			t.Helper()
			for _, a := range addrs {
				nstest.Until(t, within, fmt.Sprintf("%s at %v", a, want), func() bool {
					got, err := l.first.WhoHas(t.Context(), us, a, 300*time.Millisecond)
					return err == nil && len(got) == len(want) && !slices.ContainsFunc(want, func(mac lb.MAC) bool { return !got[mac] })
				})
			}
		}
		ours := []netip.Addr{v4, v6}
		expect(ours, owner)
		other := make(chan error)
		go func() { // answers to another question do not count
			_, err := l.first.WhoHas(t.Context(), us, v4, time.Second)
			other <- errors.Join(err, func() error { _, err := l.first.WhoHas(t.Context(), us, v6, time.Second); return err }())
		}()
		expect([]netip.Addr{foreign4, foreign6})
		if err := <-other; err != nil {
			t.Error(err)
		}
		l.far.AddAddress("eth0", v4.String()+"/24", v6.String()+"/64")
		expect(ours, owner, far)
		l.node.SetDown("eth0")
		if got, err := l.first.WhoHas(t.Context(), us, v4, time.Second); err == nil ||
			!strings.HasSuffix(err.Error(), "it is down, or has no address of the family") {
			t.Errorf("on a link that is down it got %v, %v", got, err)
		}
	})
}
