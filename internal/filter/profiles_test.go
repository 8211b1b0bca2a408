package filter

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// TestRulesAreBounded: a tenant's lists of many lengths, each Service with others or with another limit, do not have each kernel make
// a rule for each: beyond the bound his Services are closed, and no others. For the kernel the work is quadratic.
func TestRulesAreBounded(t *testing.T) {
	for _, tt := range []struct {
		name   string
		allow  func(i int) []netip.Prefix
		limits bool
	}{
		{"other lengths", func(i int) []netip.Prefix { return manyLengths(i) }, false},
		{"one list with other limits", func(int) []netip.Prefix { return manyLengths(0) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := crowd()
			for i := range 400 {
				fe := lb.Frontend{Address: netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1)), Protocol: "TCP", Port: 80, Access: lb.Access{Restricted: true,
					Allow: tt.allow(i)},
					Service: lb.Key{Namespace: "evil", Name: fmt.Sprint(i)}}
				if tt.limits {
					fe.ConnectionLimit = i + 1
				}
				d.Frontends = append(d.Frontends, fe)
			}
			same := d.Frontends[len(d.Frontends)-400]
			same.Address, same.Service = netip.MustParseAddr("2001:db8::1:0"), lb.Key{Namespace: "honest", Name: "web"}
			d.Frontends = append(d.Frontends, same)
			img := newImage(&library{}, &d, nil)
			rules, evil := map[profile]int{}, 0
			for i := range img.frontends {
				rules[img.frontends[i].profile.even()] = img.frontends[i].profile.rules()
			}
			all := 0
			for _, n := range rules {
				all += n
			}
			for s := range img.refused {
				if s.Namespace != "evil" {
					t.Errorf("%s is refused: %v", s, img.refused[s])
				}
				evil++
			}
			if all > maxCost.rules || evil == 0 || evil == 400 {
				t.Errorf("the table has %d rules for lists, want %d at most; %d of 400 Services of the tenant are closed", all, maxCost.rules, evil)
			}
		})
	}
}

// manyLengths returns prefixes of most lengths, which differ with i.
func manyLengths(i int) (out []netip.Prefix) {
	for bits := 1; bits <= 128; bits++ {
		if (bits+i*7)%(9+i/9) == 0 {
			continue
		}
		a := netip.MustParseAddr("4000::").As16()
		a[(bits-1)/8] ^= 1 << (7 - (bits-1)%8)
		out = append(out, netip.PrefixFrom(netip.AddrFrom16(a), bits).Masked())
	}
	return out
}
