package layer2

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"golang.org/x/sys/unix"
)

// TestRefused: a link whose sockets are refused is reported before any announcement is due
// there, and for as long as they are refused, even when nothing is announced any more. Each
// change kicks the plan once.
//
// Trap: an owner that cannot open its sockets loses its addresses, forgets why, and takes them back.
func TestRefused(t *testing.T) {
	pod := eth0
	pod.Index = 4
	pod.Name = "veth4"
	pod.MAC = otherMAC
	pod.NoClients = true
	down := eth0
	down.Up = false
	const err = "operation not permitted"
	synctest.Test(t, func(t *testing.T) {
		lan := newFakeLAN(eth0, pod)
		lan.fail = map[string]error{"eth0": errors.New(err), "veth4": errors.New(err)}
		r := lan.responder()
		calls := 0
		r.config.Refused = func() { calls++ }
		defer run(t, r)()
		step := func(name string, want []string, wantTold int, do func()) {
			t.Helper()
			do()
			r.Kick()
			synctest.Wait()
			for _, after := range []time.Duration{0, time.Minute} {
				time.Sleep(after)
				synctest.Wait()
				var got []string
				for _, l := range r.Refused() {
					got = append(got, l.Link+": "+l.Error)
				}
				if !slices.Equal(got, want) || calls != wantTold {
					t.Errorf("%s, after %v: %q, calls %d times; want %q, %d times", name, after, got, calls, want, wantTold)
				}
			}
		}
		refuse := func(links ...string) {
			lan.mu.Lock()
			defer lan.mu.Unlock()
			lan.fail = map[string]error{}
			for _, l := range links {
				lan.fail[l] = errors.New(err)
			}
		}
		refusal := "eth0: " + err
		step("nothing is announced, and no address names pods' links", []string{refusal}, 1, func() {})
		step("announced", []string{refusal}, 1, func() { r.Set(Desired{Announcements: announcing(ourAnnouncements)}) })
		if a := r.State().Addresses[0]; len(a.Links) > 0 || a.Pending || !slices.Equal(a.Refused, []string{err}) {
			t.Errorf("of an address: %+v", a)
		}
		step("others announce", []string{refusal}, 1, func() { r.Set(Desired{}) })
		step("the link goes down", []string{refusal}, 1, func() { lan.set(down) })
		step("and up", []string{refusal}, 1, func() { lan.set(eth0, pod) })
		both := []string{refusal, "veth4: " + err}
		step("a pods' link is named", both, 2, func() { r.Set(Desired{Announcements: announcing(named("veth4"))}) })
		step("others announce there", both, 2, func() { r.Set(Desired{}) })
		step("it works, while others announce", nil, 3, func() { refuse() })
		opened := lan.opened
		step("it is not tried again", nil, 3, func() {})
		if lan.opened != opened {
			t.Errorf("%d sockets more", lan.opened-opened)
		}
		step("it fails in vain", nil, 3, func() { refuse("eth0") })
		step("announced by the sockets that it has", nil, 3, func() {
			r.Set(Desired{Announcements: announcing(ourAnnouncements)})
		})
		step("the link is gone", nil, 3, func() { lan.set() })
		step("another link is there", []string{refusal}, 4, func() {
			other := eth0
			other.Index = 9
			lan.set(other)
		})
		step("it works while announced", nil, 5, func() { refuse() })
		if a := r.State().Addresses[0]; !a.Answered || a.Refused != nil {
			t.Errorf("of an address: %+v", a)
		}
	})
}

// TestInUse: a link is in use if an address is announced there, not because it has sockets.
func TestInUse(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		p.Set(Desired{Announcements: announcing(named("eth0"))})
		synctest.Wait()
		if got := p.State().Links; p.lan.opened != 2*protocolCount || !slices.Equal(got, []string{"eth0"}) {
			t.Errorf("%d sockets, links in use are %v", p.lan.opened, got)
		}
	}, eth1)
}

// named is announced on one link only.
func named(on string) []lb.Announcement {
	return []lb.Announcement{{Address: v4, Links: []string{on}}}
}

// TestStuckLink: a link that takes no frames does not delay another one, and gets its announcements as soon as it takes
// frames again.
//
// Trap: one goroutine waits for each frame of the stuck link.
func TestStuckLink(t *testing.T) {
	const addresses = 500
	runPlay(t, nil, func(p *play) {
		p.lan.stuck.Store(true)
		p.Set(Desired{Announcements: announcing(manyAddresses(addresses))})
		announced := func(within time.Duration, mac lb.MAC) int {
			seen := make(map[netip.Addr]bool)
			for f := range p.lan.frames(within) {
				if addr := announcedBy(f); addr.IsValid() && lb.MAC(f[offSource:offEtherType]) == mac {
					seen[addr] = true
				}
			}
			return len(seen)
		}
		if n := announced(100*time.Millisecond, eth1.MAC); n != addresses {
			t.Errorf("%d of %d addresses are announced beside a stuck link", n, addresses)
		}
		p.lan.stuck.Store(false)
		if n := announced(100*time.Millisecond, ourMAC); n != addresses {
			t.Errorf("%d of %d addresses are announced on the link that was stuck", n, addresses)
		}
	}, eth1)
}

// TestStuckLinkIsReal: the same with a queue of the kernel that hardly moves. The bound is far above the time on an
// idle machine and far below the time that blocked writes take.
func TestStuckLinkIsReal(t *testing.T) {
	besideHost(t, func(t *testing.T, n *realNetwork) {
		nstest.Veth(t, n.node, "eth1", n.far, "eth1")
		n.node.Output("tc", "qdisc", "add", "dev", "eth1", "root", "tbf", "rate", "8bit", "burst", "2000", "limit",
			"100000000")
		r := realResponder(t)
		seen := make(map[netip.Addr]bool)
		done := make(chan struct{})
		watch(t, n.far, r.protocols[1], func(frame []byte) {
			if m, out := r.protocols[1].parse(frame, askerMAC); out == answered && m.claimed.IsValid() && !seen[m.claimed] {
				if seen[m.claimed] = true; len(seen) == 450 {
					close(done)
				}
			}
		})
		r.Set(Desired{Announcements: announcing(manyHere(500))})
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			t.Error("the good link waits for the stuck one")
		}
	})
}

// TestTry: on this kernel a packet socket needs only NET_RAW.
func TestTry(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if err := Try(); err != nil {
			t.Error(err)
		}
		nstest.Without(t, unix.CAP_NET_RAW, func() {
			if err := Try(); !errors.Is(err, unix.EPERM) {
				t.Errorf("without NET_RAW: %v", err)
			}
		})
	})
}
