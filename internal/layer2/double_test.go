package layer2

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/arp"
	"github.com/mdlayher/ethernet"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// questions returns when within a time we asked everybody who else has an address, and drops all other frames.
func questions(lan *fakeLAN, d time.Duration) (at []time.Duration) {
	start, end := time.Now(), time.After(d)
	for {
		select {
		case f := <-lan.out:
			what := strings.Fields(describe(f))
			if slices.Contains(what, "NS") || what[1] == "ARP" && what[2] == "1" && what[3] != what[6] {
				at = append(at, time.Since(start))
			}
		case <-end:
			return at
		}
	}
}

// twoOwners are, for each family, our announcement, a claim by the other speaker to all, and its answer to us.
func twoOwners(t *testing.T) []struct {
	ours           lb.Announcement
	claim          []byte
	answer, ofOurs []byte
} {
	answer4 := func(mac lb.MAC) []byte {
		return arpRequest(netip.IPv4Unspecified(), func(p *arp.Packet, f *ethernet.Frame) {
			p.Operation, p.SenderIP, p.SenderHardwareAddr = arp.OperationReply, v4, mac.HardwareAddr()
			f.Source, f.Destination = askerMAC.HardwareAddr(), ourMAC.HardwareAddr()
		})
	}
	return []struct {
		ours           lb.Announcement
		claim          []byte
		answer, ofOurs []byte
	}{
		{ourAnnouncements[0], claim4(askerMAC), answer4(askerMAC), answer4(ourMAC)},
		{ourAnnouncements[1], claim6(askerMAC), solicitedNA(t, ourMAC, askerMAC, askerMAC, true), solicitedNA(t, ourMAC, askerMAC, ourMAC, true)},
	}
}

// TestSecondOwner: a new owner asks once who else has the address, when the move has settled, and again after a speaker
// claimed it. An answer is a conflict, whoever's MAC it has, within ten seconds of the claim, and for as long as there is
// one; but not that of a stand-in, which answers with our own MAC.
func TestSecondOwner(t *testing.T) {
	const conflict = "announced against 02:53:00:00:00:02"
	for _, tt := range twoOwners(t) {
		runPlay(t, nil, func(p *play) {
			p.Set(Desired{Announcements: []lb.Announcement{tt.ours}, Speakers: speakers})
			p.put(tt.claim)
			if at := questions(p.lan, settleTime-time.Millisecond); len(at) > 0 {
				t.Errorf("%s: asked before the move settled, after %v", tt.ours.Address, at)
			}
			p.expectIs("a move", "announced")
			if at := questions(p.lan, time.Minute); len(at) != 1 {
				t.Errorf("%s: asked after %v", tt.ours.Address, at)
			}
			p.put(tt.ofOurs)
			p.expectIs("a stand-in", "announced")
			p.put(tt.claim)
			p.expectIs("a speaker claims it", "announced")
			if at := questions(p.lan, 9*time.Second); len(at) != 1 {
				t.Errorf("%s: after a claim asked after %v", tt.ours.Address, at)
			}
			p.put(tt.answer)
			p.expectIs("it answers", conflict)
			for range 10 {
				if at := questions(p.lan, conflictAge/2); len(at) == 0 {
					t.Fatalf("%s: not asked while another machine has it", tt.ours.Address)
				}
				p.put(tt.answer)
			}
			p.expectIs("it still answers", conflict)
			questions(p.lan, conflictAge+time.Second)
			p.expectIs("it does not answer any more", "announced")
			if at := questions(p.lan, 10*time.Minute); len(at) > 1 {
				t.Errorf("%s: asked without a conflict after %v", tt.ours.Address, at)
			}
		})
	}
}

// TestManyNewOwnersAsk: of a thousand new addresses no more than fifty a second are asked for.
func TestManyNewOwnersAsk(t *testing.T) {
	runPlay(t, nil, func(p *play) {
		p.Set(Desired{Announcements: manyAddresses(1000), Speakers: speakers})
		at := questions(p.lan, time.Minute)
		if len(at) != 1000 {
			t.Errorf("asked %d times", len(at))
		}
		for i := range at[50:] {
			if at[i+50]-at[i] < 950*time.Millisecond {
				t.Fatalf("51 questions within %v", at[i+50]-at[i])
			}
		}
	})
}

// TestLeftoverOwner: the kernel of another speaker's node has an address of ours, as what was left by keepalived: it never
// announces the address, and answers for it.
func TestLeftoverOwner(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLAN(t)
		l.other.AddAddress("eth0", v4.String()+"/32", v6.String()+"/128")
		l.first.Set(l.here())
		nstest.Until(t, within, "a conflict of both", func() bool {
			found := 0
			for _, a := range l.first.State().Addresses {
				if a.Answered && len(a.Conflicts) == 1 && a.Conflicts[0].MAC == lb.MACFrom(l.other.MAC("eth0")) {
					found++
				}
			}
			return found == 2
		})
	})
}
