package whohas

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestPeriods(t *testing.T) {
	address, epoch := netip.MustParseAddr("192.0.2.2"), time.Unix(0, 0)
	// One sign for every 500 ms: the MAC that claims the address, a dot for none, * for both.
	for _, tc := range []struct {
		drawing, owners string
		contested       time.Duration
	}{
		{"", "", 0},
		{"aaaaaaaaa", "a", 0},
		{"aaa....aa", "a", 0},               // lost, without another owner
		{"aaabbbb", "ab", 0},                // a clean move
		{"aaa..bbbb...aaa", "aba", 0},       // there and back
		{"aaa*bbbb*aaa", "aba", 2 * window}, // both claim it for a moment during the move
		{"aaa***bbb", "ab", time.Second},
		{"aaababbbb", "ab", 500 * time.Millisecond}, // in turn, which is one move only
		{"aaabbbbbb*bbbbb", "abab", window},         // a late frame of the former owner
		{"aaa...bbb...aaa...bbb", "abab", 0},
		{"*********", "ab", 4 * time.Second},
	} {
		var claims []Claim
		for i, sign := range tc.drawing {
			for _, mac := range map[rune]string{'a': "a", 'b': "b", '*': "ab"}[sign] {
				claims = append(claims, Claim{epoch.Add(time.Duration(500*i) * time.Millisecond), address, string(mac)})
			}
		}
		periods := Periods(claims, address)
		if got := strings.Join(Owners(periods), ""); got != tc.owners {
			t.Errorf("%q: owners %q, want %q", tc.drawing, got, tc.owners)
		}
		var sum time.Duration
		for _, s := range Contested(periods) {
			sum += s.To.Sub(s.From)
		}
		if sum != tc.contested {
			t.Errorf("%q: two owners for %s, want %s", tc.drawing, sum, tc.contested)
		}
	}
	if got := Periods([]Claim{{epoch, netip.MustParseAddr("192.0.2.3"), "a"}}, address); len(got) != 0 {
		t.Errorf("periods over another address: %v", got)
	}
}
