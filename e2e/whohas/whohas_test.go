package whohas

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestRun: a kernel answers requests, and Run reports the claim.
func TestRun(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", far, "eth0")
		node.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64")
		far.AddAddress("eth0", "192.0.2.2/24", "2001:db8::2/64")
		want := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.2"): true, netip.MustParseAddr("2001:db8::2"): true}
		c := Config{
			Link: "eth0", Every: 20 * time.Millisecond,
			From: []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("2001:db8::9")},
		}
		for a := range want {
			c.Targets = append(c.Targets, a)
		}
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
		defer stop()
		err := Run(ctx, c, func(claim Claim) {
			if want[claim.Address] && claim.MAC == far.MAC("eth0").String() {
				delete(want, claim.Address)
			}
			if len(want) == 0 {
				stop()
			}
		})
		if err != nil || len(want) > 0 {
			t.Errorf("error %v, no claim of %v", err, want)
		}
	})
}

func TestClaims(t *testing.T) {
	address, epoch := netip.MustParseAddr("192.0.2.2"), time.Unix(0, 0)
	// One sign for every 20 ms: the MAC that claims the address, a dot for none, * for both.
	claims := func(drawing string) (out []Claim) {
		for i, sign := range drawing {
			for _, mac := range map[rune]string{'a': "a", 'b': "b", '*': "ab"}[sign] {
				out = append(out, Claim{epoch.Add(time.Duration(20*i) * time.Millisecond), address, string(mac)})
			}
		}
		return out
	}
	for drawing, want := range map[string]time.Duration{
		"":                          0,
		"aaaaaaaaaa":                0,
		"aaaaa.....bbbbb":           0,
		"aaaaa.....bbbbb.....aaaaa": 0,
		"aaaaabbbbb":                0,
		"aaaaaa*bbbb":               window,
		"*****":                     2 * window,
		"ababababab":                4 * window,
	} {
		if got := Overlap(claims(drawing), address); got != want {
			t.Errorf("%q: two claim it for %s, want %s", drawing, got, want)
		}
	}
	got := First(claims("aaaaa..bb"), epoch.Add(90*time.Millisecond))
	if want := epoch.Add(140 * time.Millisecond); !got[address].Equal(want) {
		t.Errorf("it moved at %s, want %s", got[address], want)
	}
	if got := First(claims("aaaaa..aa"), epoch.Add(90*time.Millisecond)); len(got) > 0 {
		t.Errorf("it did not move, but %v", got)
	}
}

func FuzzRead(f *testing.F) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	f.Add(question(mac, netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")))
	f.Add(question(mac, netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if _, mac, ok := read(frame); ok && len(mac) != 6 {
			t.Errorf("a MAC of %d bytes", len(mac))
		}
	})
}
