package unnumbered

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/mdlayher/ndp"
)

func message(t testing.TB, m ndp.Message) []byte {
	t.Helper()
	b, err := ndp.MarshalMessage(m)
	must(t, err)
	return b
}

// RFC 4861 sections 6.1.1 and 6.1.2.
func TestParse(t *testing.T) {
	mac := &ndp.LinkLayerAddress{Direction: ndp.Source, Addr: []byte{2, 0, 0, 0, 0, 1}}
	advert, ask := message(t, &ndp.RouterAdvertisement{Options: []ndp.Option{mac}}), message(t, &ndp.RouterSolicitation{})
	with := func(b []byte, more ...byte) []byte { return append(slices.Clone(b), more...) }
	for _, tt := range []struct {
		name string
		b    []byte
		from string
		hops int
		want bool
	}{
		{"advertisement", advert, "fe80::1", 255, true},
		{"with an unknown option", with(advert, 250, 1, 0, 0, 0, 0, 0, 0), "fe80::1", 255, true},
		{"that crossed a router", advert, "fe80::1", 254, false},
		{"of no link-local address", advert, "2001:db8::1", 255, false},
		{"too short", advert[:15], "fe80::1", 255, false},
		{"without options", advert[:16], "fe80::1", 255, true},
		{"with a cut option", with(advert, 1, 1), "fe80::1", 255, false},
		{"with an option of no length", with(advert, 1, 0, 0, 0, 0, 0, 0, 0), "fe80::1", 255, false},
		{"with an option that is too long", with(advert, 1, 2, 0, 0, 0, 0, 0, 0), "fe80::1", 255, false},
		{"of another code", with([]byte{134, 1}, advert[2:]...), "fe80::1", 255, false},
		{"a solicitation", with(ask, 0, 0, 0, 0, 0, 0, 0, 0), "fe80::1", 255, false},
		{"another message", message(t, &ndp.NeighborSolicitation{TargetAddress: routerA}), "fe80::1", 255, false},
		{"nothing", nil, "fe80::1", 255, false},
	} {
		if got := advertises(tt.b, netip.MustParseAddr(tt.from), tt.hops); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}

// What is taken for an advertisement has whole options, and the library agrees about all but options that it knows
// better.
func FuzzParse(f *testing.F) {
	f.Add(message(f, &ndp.RouterAdvertisement{}))
	f.Add(message(f, &ndp.RouterSolicitation{}))
	f.Add(append(message(f, &ndp.RouterAdvertisement{}), 5, 1, 0, 0, 0, 0, 5, 220))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := slices.Clone(b)
		got := advertises(b, routerA, ndp.HopLimit)
		if !slices.Equal(b, before) {
			t.Error("it writes to its input")
		}
		if m, err := ndp.ParseMessage(b); err == nil && b[1] == 0 && !got {
			if _, found := m.(*ndp.RouterAdvertisement); found {
				t.Errorf("refused: %x", b)
			}
		}
		if got && (len(b)%8 != 0 || b[1] != 0) {
			t.Errorf("taken: %x", b)
		}
		if advertises(b, routerA, ndp.HopLimit-1) {
			t.Error("taken though it crossed a router")
		}
	})
}
