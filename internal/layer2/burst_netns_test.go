package layer2

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// manyHere are addresses of the subnets of the tests: some IPv4, the rest IPv6.
func manyHere(n int) []lb.Announcement {
	var set []lb.Announcement
	a4, a6 := netip.MustParseAddr("192.0.2.128"), netip.MustParseAddr("2001:db8::1:0")
	for range n / 10 {
		set = append(set, lb.Announcement{Address: a4})
		a4 = a4.Next()
	}
	for range n - n/10 {
		set = append(set, lb.Announcement{Address: a6})
		a6 = a6.Next()
	}
	return set
}

// TestThousandTakeovers: of a thousand simultaneous takeovers every announcement of
// every address reaches the far end, except frames that the kernel of a busy machine
// reports as dropped.
func TestThousandTakeovers(t *testing.T) {
	besideHost(t, func(t *testing.T, n *realNetwork) {
		r := timedResponder(t, Timers{AnnounceTimes: []time.Duration{0, time.Second, 2 * time.Second}})
		set := manyHere(1000)
		var mu sync.Mutex
		seen := make(map[netip.Addr]int)
		var last time.Time
		var overflowed [familyCount]func() uint64
		for i, proto := range r.protocols[:familyCount] {
			overflowed[i] = watch(t, n.far, proto, func(frame []byte) {
				m, out := proto.parse(frame, askerMAC)
				if out != answered || !m.claimed.IsValid() {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				if seen[m.claimed]++; seen[m.claimed] == 1 {
					last = time.Now()
				}
			})
		}
		times := len(r.config.Timers.AnnounceTimes)
		// How many addresses and how many announcements were never seen.
		missing := func() (never, unseen int) {
			mu.Lock()
			defer mu.Unlock()
			for _, a := range set {
				if seen[a.Address] == 0 {
					never++
				}
				unseen += max(times-seen[a.Address], 0)
			}
			return never, unseen
		}
		// How many frames of the node never reached the watchers, by the kernel's counters.
		var overflows uint64
		dropped := func() uint64 {
			for _, f := range overflowed {
				overflows += f()
			}
			return overflows + n.node.Link("eth0").Attrs().Statistics.TxDropped + n.far.Link("eth0").Attrs().Statistics.RxDropped
		}
		made := func() bool {
			c := &r.counters.announcements
			return c[0][sent].Load()+c[0][failed].Load() >= uint64(100*times) &&
				c[1][sent].Load()+c[1][failed].Load() >= uint64(900*times)
		}
		start := time.Now()
		r.Set(Desired{Announcements: announcing(set)})
		nstest.Until(t, within, "an announcement of each address", func() bool { never, _ := missing(); return never == 0 })
		mu.Lock()
		t.Logf("each of %d addresses was announced within %v", len(set), last.Sub(start))
		mu.Unlock()
		nstest.Until(t, within, "all announcements of each address", func() bool {
			_, unseen := missing()
			return unseen == 0 || made() && uint64(unseen) <= dropped()
		})
		if _, unseen := missing(); unseen > 0 {
			t.Logf("%d announcements were not seen; the kernel dropped %d frames", unseen, dropped())
		}
		for _, a := range []netip.Addr{set[99].Address, set[999].Address} {
			nstest.Until(t, within, "answer", func() bool { return n.ask(t, a) == n.mac() })
		}
	})
}

// TestRealPolicer: a host whose kernel takes 1,000 packets of ARP and Neighbor Discovery a second, with a burst of 500,
// learns a thousand addresses of two new owners without asking.
func TestRealPolicer(t *testing.T) {
	onLAN(t, func(t *testing.T, l *lan) {
		rules := l.far.Command("nft", "-f", "-")
		rules.Stdin = strings.NewReader(`table netdev police {
			chain ingress {
				type filter hook ingress device "eth0" priority 0;
				meta protocol { arp, ip6 } limit rate over 1000/second burst 500 packets drop
			}
		}
		`)
		if out, err := rules.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		set := manyHere(1000)
		var mu sync.Mutex
		seen := make(map[netip.Addr]bool)
		for _, proto := range protocols() {
			// The kernel passes frames to such a socket after the policer.
			watch(t, l.far, proto, func(frame []byte) {
				if m, out := proto.parse(frame, askerMAC); out == answered && m.claimed.IsValid() {
					mu.Lock()
					defer mu.Unlock()
					seen[m.claimed] = true
				}
			})
		}
		start := time.Now()
		l.first.Set(Desired{Announcements: announcing(set[:500]), Speakers: l.speakers()})
		l.second.Set(Desired{Announcements: announcing(set[500:]), Speakers: l.speakers()})
		nstest.Until(t, within, "all addresses", func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, a := range set {
				if !seen[a.Address] {
					return false
				}
			}
			return true
		})
		t.Logf("the policed host knows %d addresses after %v", len(set), time.Since(start).Round(time.Millisecond))
	})
}

// TestFloodIsFilteredByTheKernel: a flood of questions for other addresses never wakes
// the speaker, and a question for one of ours among them is answered.
func TestFloodIsFilteredByTheKernel(t *testing.T) {
	besideHost(t, func(t *testing.T, n *realNetwork) {
		r := realResponder(t)
		r.Set(Desired{Announcements: announcing(ourAnnouncements)})
		nstest.Until(t, within, "answer", func() bool { return n.ask(t, v4) != "" && n.ask(t, v6) != "" })
		for i, foreign := range [familyCount][]byte{arpRequest(foreign4, nil), ns(foreign6, nil)} {
			w := farWire(t, n.far, r.protocols[i])
			before := r.counters.requests[i][answered].Load()
			for range 20_000 {
				// A busy machine delivers slowly; then the sender has to wait.
				if _, err := w.Write(foreign); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatal(err)
				}
			}
			// A flood may crowd out a question; the asker repeats it.
			nstest.Until(t, within, "answer after the flood", func() bool {
				if _, err := w.Write([familyCount][]byte{arpRequest(v4, nil), ns(v6, nil)}[i]); err != nil &&
					!errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatal(err)
				}
				return r.counters.requests[i][answered].Load() > before
			})
			if got := r.counters.requests[i][notOurs].Load() + r.counters.requests[i][notRequest].Load(); got != 0 {
				t.Errorf("%s: %d frames that are no business of ours came through", r.protocols[i].name, got)
			}
		}
	})
}

// TestFilterFitsIntoLittleMemory: the kernel accepts the largest programs and replaces one
// by the other with a limit of 20 KiB for each socket, the default before Linux 6.9.
func TestFilterFitsIntoLittleMemory(t *testing.T) {
	besideHost(t, func(t *testing.T, n *realNetwork) {
		n.node.Sysctl("core/optmem_max", "20480")
		r := realResponder(t)
		set := ourAnnouncements
		for i := range uint32(1000) {
			set = append(set, lb.Announcement{Address: address4(10<<24 + i*7919)},
				lb.Announcement{Address: address6(uint64(i%(maxNetworks-1)), i*7919)})
		}
		for i := range 3 {
			r.Set(Desired{Announcements: announcing(set[:len(set)-i])})
			nstest.Until(t, within, "answers", func() bool { return n.ask(t, v4) == n.mac() && n.ask(t, v6) == n.mac() })
		}
		if n := r.counters.repairs[repairSocket].Load(); n != 0 {
			t.Errorf("%d sockets had to be reopened", n)
		}
	})
}

func farWire(t testing.TB, ns *nstest.NS, proto protocol) frameConn {
	return wireOn(t, ns, eth0In(ns), proto)
}

func wireOn(t testing.TB, ns *nstest.NS, l lb.Interface, proto protocol) (w frameConn) {
	t.Helper()
	ns.Do(func() {
		var err error
		if w, err = listen(l, proto); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { w.Close() })
	return w
}

func write(t testing.TB, w frameConn, frame []byte) {
	t.Helper()
	_, err := w.Write(frame)
	must(t, err)
}
