package layer2

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// policer is a router that takes 1,000 packets a second with a burst of 500, and drops the rest.
type policer struct {
	sync.Mutex
	room  float64
	last  time.Time
	knows map[netip.Addr]time.Duration
	start time.Time
	// learns returns the address that it learns from a frame, the zero Addr for none.
	learns func(frame []byte) netip.Addr
}

func newPolicer(learns func(frame []byte) netip.Addr) *policer {
	return &policer{
		learns: learns, room: 500, last: time.Now(), start: time.Now(), knows: make(map[netip.Addr]time.Duration),
	}
}

func (p *policer) put(frame []byte) {
	p.Lock()
	defer p.Unlock()
	at := time.Now()
	p.room, p.last = min(p.room+1000*at.Sub(p.last).Seconds(), 500), at
	if p.room < 1 {
		return
	}
	p.room--
	addr := p.learns(frame)
	if _, known := p.knows[addr]; addr.IsValid() && !known {
		p.knows[addr] = at.Sub(p.start)
	}
}

// announcedBy returns the address that a frame of ours announces, the zero Addr for none.
func announcedBy(frame []byte) netip.Addr {
	for _, proto := range protocols() {
		if m, out := proto.parse(frame, lb.MAC(frame[offDestination:offSource])); out == answered {
			return m.claimed
		}
	}
	return netip.Addr{}
}

// gateways are routers of a link that ignore gratuitous ARP and unsolicited advertisements.
var gateways = []lb.Neighbour{
	{Address: netip.MustParseAddr("192.0.2.254"), MAC: otherMAC},
	{Address: netip.MustParseAddr("fe80::254"), MAC: otherMAC},
}

// requestedBy returns the address from which a frame asks one of these gateways: they learn from that.
func requestedBy(frame []byte) netip.Addr {
	for i, proto := range protocols() {
		if m, out := proto.parse(frame, otherMAC); out == answered && m.isUnicast && m.isQuestion() &&
			m.target == gateways[i].Address {
			return m.sender
		}
	}
	return netip.Addr{}
}

// TestPolicedNeighbour: a router that polices ARP and Neighbor Discovery knows all addresses after some seconds,
// however many nodes have taken them, and a thousand addresses of one node are not announced for longer than that.
//
// Trap: all addresses are announced and repeated within two seconds in the same order, so that the router knows the
// last one only after the refresh, a minute later.
func TestPolicedNeighbour(t *testing.T) {
	for _, tt := range []struct {
		owners, addresses int
		longest           time.Duration
		// requests reports that routers learn from requests only.
		requests bool
	}{
		{1, 1000, 5 * time.Second, false}, {2, 1000, 5 * time.Second, false}, {8, 1000, 5 * time.Second, false},
		{1, 10_000, 25 * time.Second, false}, {2, 10_000, 25 * time.Second, false}, {8, 10_000, 3 * time.Minute, false},
		{1, 1000, 10 * time.Second, true}, {2, 1000, 10 * time.Second, true}, {8, 1000, time.Minute, true},
		{8, 10_000, 10 * time.Minute, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			router := newPolicer(announcedBy)
			if tt.requests {
				router.learns = requestedBy
			}
			set := manyAddresses(tt.addresses)
			for owner := range tt.owners {
				lan := newFakeLAN(eth0)
				r := lan.responder()
				r.system.random, r.config.AnnounceByRequest = randomBetween, tt.requests
				r.config.Gateways = func(int) []lb.Neighbour { return gateways }
				defer run(t, r)()
				go func() {
					for f := range lan.frames(tt.longest) {
						router.put(f)
					}
				}()
				var own []lb.Announcement
				for i := owner; i < len(set); i += tt.owners {
					own = append(own, set[i])
				}
				r.Set(Desired{Announcements: announcing(own)})
			}
			time.Sleep(tt.longest)
			router.Lock()
			defer router.Unlock()
			var last time.Duration
			for _, at := range router.knows {
				last = max(last, at)
			}
			t.Logf("%d owners, %d addresses, by requests %v: %d known, the last one after %v", tt.owners, tt.addresses,
				tt.requests, len(router.knows), last)
			if len(router.knows) != tt.addresses {
				t.Errorf("%d owners: the router knows %d of %d addresses after %v", tt.owners, len(router.knows), tt.addresses,
					tt.longest)
			}
		})
	}
}

// TestRateOfALink: beyond the burst a link gets 500 frames a second. First announcements come before repetitions, and
// each repetition keeps its distance. A flapping link gets no new burst.
func TestRateOfALink(t *testing.T) {
	const addresses = 3000
	synctest.Test(t, func(t *testing.T) {
		lan := newFakeLAN(eth0)
		r := lan.responder()
		r.system.random = randomBetween
		defer run(t, r)()
		r.Set(Desired{Announcements: announcing(manyAddresses(addresses))})
		times := make(map[netip.Addr][]time.Duration)
		start := time.Now()
		collect := func(d time.Duration) (frames int) {
			for f := range lan.frames(d) {
				frames++
				if addr := announcedBy(f); addr.IsValid() { // no duplicate check
					times[addr] = append(times[addr], time.Since(start))
				}
			}
			return frames
		}
		if n := collect(100 * time.Millisecond); n < 1000 || n > 1100 {
			t.Errorf("%d frames at once", n)
		}
		for second := range 30 {
			if n := collect(time.Second); n > 510 {
				t.Errorf("%d frames in second %d", n, second)
			}
			if second == 4 && len(times) < addresses {
				t.Errorf("%d addresses announced after five seconds", len(times))
			}
		}
		for addr, at := range times {
			if len(at) > 1 && at[1]-at[0] < time.Second {
				t.Errorf("%v is repeated after %v", addr, at[1]-at[0])
			}
		}
		flaps := 0
		for range 10 {
			lan.conn("eth0", r.protocols[0]).Close()
			flaps += collect(time.Second)
		}
		if flaps > 1000+10*510 {
			t.Errorf("%d frames in ten seconds in which the link flaps", flaps)
		}
	})
}

// TestNearMachinesFirst: a gateway and a machine that asked get the announcement of a new address before all others. Of
// many addresses they do not, since all others would wait for that.
func TestNearMachinesFirst(t *testing.T) {
	gateway := lb.Neighbour{Address: netip.MustParseAddr("192.0.2.254"), MAC: otherMAC}
	heard := func(lan *fakeLAN, d time.Duration) (got []string) {
		for f := range lan.frames(d) {
			got = append(got, describe(f))
		}
		return got
	}
	synctest.Test(t, func(t *testing.T) {
		lan := newFakeLAN(eth0)
		r := lan.responder()
		r.config.Gateways = func(int) []lb.Neighbour { return []lb.Neighbour{gateway} }
		defer run(t, r)()
		r.Set(Desired{Announcements: announcing(ourAnnouncements[:1])})
		heard(lan, time.Minute)
		lan.conn("eth0", r.protocols[0]).in <- arpRequest(v4, nil)
		heard(lan, time.Second)
		second := lb.Announcement{Address: netip.MustParseAddr("192.0.2.101")}
		r.Set(Desired{Announcements: announcing([]lb.Announcement{ourAnnouncements[0], second})})
		got := heard(lan, 500*time.Millisecond)
		for i, to := range []string{"us>" + otherMAC.String(), "us>asker", "us>all"} {
			if len(got) != 3 || !strings.HasPrefix(got[i], to) || !strings.Contains(got[i], "192.0.2.101 us") {
				t.Fatalf("sent %q", got)
			}
		}
		heard(lan, time.Minute)
		r.Set(Desired{Announcements: announcing(manyAddresses(1000))})
		toAll := 0
		for _, line := range heard(lan, 25*time.Millisecond) {
			if strings.HasPrefix(line, "us>all") || strings.HasPrefix(line, "us>33:33") {
				toAll++
			}
		}
		if toAll < 990 {
			t.Errorf("%d of 1000 addresses are announced to all", toAll)
		}
	})
}

// TestLateWakeUp: a late wake-up on a busy node makes up for the frames that it missed, but not for a pause, and sends
// no frame before it is due.
func TestLateWakeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := newFakeLAN(eth0)
		r := lan.responder()
		r.Set(Desired{Announcements: announcing(manyAddresses(900))})
		if !r.Announcing() {
			t.Error("Announcing is false before it begins")
		}
		k := newPortKeeper(r)
		defer k.close()
		k.sync()
		var before uint64
		for _, tt := range []struct {
			late time.Duration
			want int
		}{{0, 1}, {time.Millisecond, 1}, {4 * time.Millisecond, 4}, {paceSlack, 10}, {time.Minute, 1}} {
			time.Sleep(tt.late)
			k.sendDue()
			all := r.counters.announcements[0][sent].Load() + r.counters.announcements[1][sent].Load()
			if got := all - before; got != uint64(tt.want*paceFrames) {
				t.Errorf("%v after the last: %d frames, want %d times %d", tt.late, got, tt.want, paceFrames)
			}
			before = all
		}
	})
}

// TestLateTimers: the delays of timers do not add up over the steps of a phase, since a Service waits for its end.
// After a delay frames keep their distance.
func TestLateTimers(t *testing.T) {
	for _, tt := range []struct {
		late time.Duration
		want string
	}{{0, "[0s 8ms 16ms 25ms]"}, {3 * time.Millisecond, "[3ms 14ms 22ms 31ms]"},
		{11 * time.Millisecond, "[11ms 30ms 49ms 69ms]"}} {
		start := time.Unix(0, 0)
		at := start
		s := newSchedule(Timers{}.withDefaults(), &rateLimit{}, randomBetween)
		s.setJob(v4, job{phase: probing, status: newStatus(probing)}, at)
		var stepTimes []time.Duration
		for wait := s.untilNext(at); wait != never; wait = s.untilNext(at) {
			at = at.Add(wait + tt.late)
			stepTimes = append(stepTimes, at.Sub(start))
			s.complete(s.nextDue(at), at)
		}
		if got := fmt.Sprint(stepTimes); got != tt.want {
			t.Errorf("each timer %v late: steps at %s, want %s", tt.late, got, tt.want)
		}
	}
}
