package unnumbered

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

var routerA, routerB, routerC = netip.MustParseAddr("fe80::a"), netip.MustParseAddr("fe80::b"),
	netip.MustParseAddr("fe80::c")

// play runs a link for a time, in steps of a second. A router is heard in a second in which speaks says so.
func play(r *routers, from, to int, speaks func(second int, router netip.Addr, asked bool) bool) (log []string) {
	start := time.Unix(0, 0)
	present := r.present
	for s := from; s < to; s++ {
		moment := start.Add(time.Duration(s) * time.Second)
		asked := r.tick(moment, false)
		if asked {
			log = append(log, fmt.Sprintf("%d ask", s))
		}
		if r.present != present {
			present = r.present
			log = append(log, fmt.Sprintf("%d %s", s, present))
		}
		for _, a := range []netip.Addr{routerA, routerB, routerC} {
			if speaks(s, a, asked) {
				r.receive(moment, a)
			}
		}
		if r.present != present {
			present = r.present
			log = append(log, fmt.Sprintf("%d %s", s, present))
		}
	}
	return log
}

// Which router a link has, second by second.
func TestRouters(t *testing.T) {
	every := func(interval int) func(s int) bool { return func(s int) bool { return s%interval == 0 } }
	for _, tt := range []struct {
		name   string
		speaks func(s int, a netip.Addr, asked bool) bool
		want   string
	}{
		{"no router: three questions, and no more", func(int, netip.Addr, bool) bool { return false }, "0 ask, 4 ask, 8 ask"},
		{"a router that answers", func(s int, a netip.Addr, asked bool) bool {
			return a == routerB && asked
		}, "0 ask, 0 fe80::b"},
		{"a router that is silent from then on stays: there is no other", func(s int, a netip.Addr, _ bool) bool {
			return a == routerB && s == 2
		},
			"0 ask, 2 fe80::b"},
		{"a router that speaks late", func(s int, a netip.Addr, _ bool) bool {
			return a == routerB && s > 30 && every(10)(s)
		}, "0 ask, 4 ask, 8 ask, 40 fe80::b"},
		{"two that live take no turns", func(s int, a netip.Addr, asked bool) bool {
			return a == routerA && every(10)(s+3) || a == routerB && every(10)(s)
		}, "0 ask, 0 fe80::b"},
		{"nor if one speaks once in ten minutes and answers", func(s int, a netip.Addr, asked bool) bool {
			return a == routerB && (s == 0 || asked) || a == routerA && s > 0 && every(10)(s)
		}, "0 ask, 0 fe80::b, 21 ask, 41 ask, 61 ask, 81 ask"},
		{"the other one takes over when the first is dead", func(s int, a netip.Addr, asked bool) bool {
			return a == routerA && s < 35 && every(10)(s) || a == routerB && every(10)(s+5)
		}, "0 ask, 0 fe80::a, 46 ask, 50 ask, 54 ask, 58 fe80::b"},
		{"and keeps the link when the first is back", func(s int, a netip.Addr, asked bool) bool {
			return a == routerA && (s < 5 || s > 60) && every(10)(s) || a == routerB && every(10)(s+5)
		}, "0 ask, 0 fe80::a, 16 ask, 20 ask, 24 ask, 28 fe80::b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &routers{next: time.Unix(0, 0)}
			if got := strings.Join(play(r, 0, 90, tt.speaks), ", "); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// After the link was down the present router is asked for. It stays if it answers, and otherwise the router that does
// is taken.
func TestRoutersAfterLinkUp(t *testing.T) {
	for want, heard := range map[string]netip.Addr{"100 ask": routerA, "100 ask, 104 ask, 108 ask, 112 fe80::b": routerB} {
		r := &routers{next: time.Unix(0, 0)}
		play(r, 0, 2, func(_ int, a netip.Addr, asked bool) bool { return a == routerA && asked })
		r.solicit(time.Unix(100, 0))
		if got := strings.Join(play(r, 100, 120, func(_ int, a netip.Addr, asked bool) bool {
			return a == heard && asked
		}), ", "); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// A router at the other end of a cable that is plugged in again may have forgotten this node, which advertises itself
// at once.
func TestPortUp(t *testing.T) {
	start := time.Unix(100, 0)
	p := &port{advertiseAt: start.Add(maxInterval), isUp: true}
	for _, up := range []bool{true, false} {
		if p.setUp(start, up); !p.advertiseAt.Equal(start.Add(maxInterval)) {
			t.Errorf("up %v: it advertises itself after %v", up, p.advertiseAt.Sub(start))
		}
	}
	if p.setUp(start, true); !p.advertiseAt.Equal(start) {
		t.Errorf("it advertises itself %v after the link is up again", p.advertiseAt.Sub(start))
	}
	if tells := p.options(); len(tells) > 0 {
		t.Errorf("a link without Ethernet addresses tells %v", tells)
	}
}

// A flood of invented routers moves nothing while the present one lives.
func TestRoutersFlood(t *testing.T) {
	r := &routers{next: time.Unix(0, 0)}
	moment := time.Unix(0, 0)
	r.receive(moment, routerA)
	for i := range 10000 {
		moment = moment.Add(10 * time.Millisecond)
		a := routerB.As16()
		a[14], a[13] = byte(i), byte(i>>8)
		r.receive(moment, netip.AddrFrom16(a))
		if r.tick(moment, false) || i%1000 == 0 {
			r.receive(moment, routerA)
		}
		if r.present != routerA {
			t.Fatalf("present is %s", r.present)
		}
	}
}

// A flood that drowns what the present router sends does not replace it while BGP has a session with it, and the other
// router changes seldom. When the session has ended the router is asked, and replaced.
func TestRoutersFloodEstablished(t *testing.T) {
	r := &routers{next: time.Unix(0, 0)}
	moment := time.Unix(0, 0)
	r.receive(moment, routerA)
	a := routerB.As16()
	flood := func(d time.Duration, established bool) (asked, changed int) {
		for end := moment.Add(d); moment.Before(end); moment = moment.Add(20 * time.Millisecond) {
			before := r.other
			if a[14]++; a[14] == 0 {
				a[13]++
			}
			r.receive(moment, netip.AddrFrom16(a))
			if r.tick(moment, established) {
				asked++
			}
			if before != r.other {
				changed++
			}
		}
		return asked, changed
	}
	const long = 10 * time.Minute
	asked, changed := flood(long, true)
	if r.present != routerA || asked == 0 {
		t.Errorf("the router is %s, it was asked %d times", r.present, asked)
	}
	if limit := int(long/silence + 1); changed == 0 || changed > limit {
		t.Errorf("the other router changed %d times in %v", changed, long)
	}
	if flood(silence+(maxSolicitations+1)*solicitInterval, false); r.present == routerA {
		t.Error("a router that is gone keeps the link")
	}
}
