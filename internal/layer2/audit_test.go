package layer2

import (
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// The audit's speakers: this node, the asker, whose second link is secondMAC, and the other one.
var (
	secondMAC = lb.MAC{0x02, 0x53, 0, 0, 0, 0x12}
	three     = map[lb.MAC]bool{ourMAC: true, askerMAC: true, secondMAC: true, otherMAC: true}
)

// event happens at a given second: an announcement or a new plan.
type event struct {
	at    float64
	by    lb.MAC
	of    netip.Addr
	plan  *Desired
	stall time.Duration
}

// repeat returns periodic announcements of v4.
func repeat(by lb.MAC, of netip.Addr, from, to, every float64) (out []event) {
	for at := from; at <= to; at += every {
		out = append(out, event{at: at, by: by, of: of})
	}
	return out
}

// burst returns the announcements of a node that takes an address over, and has it for two seconds.
func burst(by lb.MAC, at float64) []event { return repeat(by, v4, at, at+2, 1) }

func planned(by ...lb.MAC) *Desired {
	d := &Desired{Speakers: three, Owners: map[netip.Addr][][6]byte{}}
	for _, addr := range []netip.Addr{v4, v6, foreign4} {
		for _, mac := range by {
			d.Owners[addr] = append(d.Owners[addr], mac)
		}
	}
	return d
}

func here() *Desired {
	return &Desired{Speakers: three, Announcements: []lb.Announcement{{Address: v4}}}
}

// rehearse plays events for 300 s and returns the counts of both families, in seconds.
func rehearse(t *testing.T, first *Desired, events ...[]event) (doubled, unclaimed float64) {
	t.Helper()
	lan := newFakeLAN(eth0)
	r := lan.responder()
	start, elapsed := time.Now(), time.Duration(0)
	r.now = func() time.Time { return start.Add(elapsed) }
	r.Set(*first)
	a := newAudit(r)
	for elapsed < 300*time.Second {
		a.turn()
		for _, es := range events {
			for _, e := range es {
				at := time.Duration(e.at * float64(time.Second))
				if at < elapsed || at >= elapsed+auditInterval {
					continue
				}
				switch {
				case e.plan != nil:
					r.Set(*e.plan)
				case e.stall > 0:
					elapsed += e.stall
				default:
					// The fake link has no tap: pass on what would be received.
					a.claim(e.of, e.by, at+time.Second)
				}
			}
		}
		elapsed += auditInterval
	}
	a.walk(elapsed + time.Second)
	total := &r.counts.audit
	sum := func(n int64, m int64) float64 { return time.Duration(n + m).Seconds() }
	return sum(total.doubled[0].Load(), total.doubled[1].Load()), sum(total.unclaimed[0].Load(), total.unclaimed[1].Load())
}

func TestAudit(t *testing.T) {
	all := func(by lb.MAC, from, to float64) (out []event) {
		for i, addr := range []netip.Addr{v4, v6, foreign4} {
			out = append(out, repeat(by, addr, from+10*float64(i), to, 45)...)
		}
		return out
	}
	change := func(at float64, to *Desired) []event { return []event{{at: at, plan: to}} }
	for _, tt := range []struct {
		name               string
		first              *Desired
		events             [][]event
		doubled, unclaimed float64
	}{
		{"as planned", planned(askerMAC), [][]event{all(askerMAC, 10, 300)}, 0, 0},
		{"by two links of the owner", planned(askerMAC, secondMAC), [][]event{all(askerMAC, 10, 300), repeat(secondMAC, v4, 15, 300, 45)}, 0, 0},
		{"a planned move", planned(askerMAC), [][]event{
			all(askerMAC, 10, 100), change(100, planned(otherMAC)), burst(otherMAC, 100.1), {{at: 100.3, by: askerMAC, of: v4}}, all(otherMAC, 140, 300),
		}, 0, 0},
		{"a move planned here last", planned(askerMAC), [][]event{
			all(askerMAC, 10, 100), burst(otherMAC, 98), change(100.3, planned(otherMAC)), all(otherMAC, 140, 300),
		}, 0, 0},
		{"to and fro", planned(askerMAC), [][]event{
			all(askerMAC, 10, 60), burst(otherMAC, 60), change(60, planned(otherMAC)), change(70, planned(askerMAC)), burst(askerMAC, 70), all(askerMAC, 110, 300),
		}, 0, 0},
		{"a move to us", planned(askerMAC), [][]event{all(askerMAC, 10, 100), change(100, here()), {{at: 100.4, by: askerMAC, of: v4}}}, 0, 0},
		{"a move away from us, planned here last", here(), [][]event{
			burst(askerMAC, 100), change(102.5, planned(askerMAC)), all(askerMAC, 140, 300),
		}, 0, 0},
		{"a foreign machine", here(), [][]event{repeat(foreignMAC, v4, 100, 200, 10)}, 0, 0},
		{"a second owner beside another node", planned(askerMAC), [][]event{
			all(askerMAC, 10, 300), repeat(otherMAC, v4, 120, 240, 40), // 10, 55, 100, 145, 190, 235, 280 against 120, 160, 200, 240
		}, 120, 0},
		{"a second owner beside us", here(), [][]event{burst(askerMAC, 100), repeat(askerMAC, v4, 140, 220, 40)}, 120, 0},
		{"a second owner beside us for a moment", here(), [][]event{burst(askerMAC, 100)}, 2, 0},
		{"a speaker that said something wrong once", planned(askerMAC), [][]event{all(askerMAC, 10, 300), burst(otherMAC, 100)}, 0, 0},
		{"one of three falls silent", planned(askerMAC), [][]event{{{at: 10, by: askerMAC, of: v4}}, repeat(askerMAC, v6, 20, 300, 45),
			repeat(askerMAC, foreign4, 30, 300, 45)}, 0, 300 - 10 - 130},
		{"one announcement is lost", planned(askerMAC), [][]event{
			repeat(askerMAC, v4, 10, 70, 60), repeat(askerMAC, v4, 190, 300, 60), repeat(askerMAC, v6, 20, 300, 60), repeat(askerMAC, foreign4, 20, 300, 60),
		}, 0, 0},
		{"an owner that is not heard here", planned(askerMAC), nil, 0, 0},
		{"an owner that is heard by IPv6 only", planned(askerMAC), [][]event{repeat(askerMAC, v6, 20, 300, 45)}, 0, 0},
		{"an owner whose links are not known", planned(), [][]event{repeat(askerMAC, v6, 20, 300, 45)}, 0, 0},
		{"the audit stood still", planned(askerMAC), [][]event{all(askerMAC, 10, 100), {{at: 100, stall: 150 * time.Second}}}, 0, 0},
		{"the plan changed meanwhile", planned(askerMAC), [][]event{
			all(askerMAC, 10, 10), repeat(askerMAC, foreign4, 10, 300, 45), change(100, planned(otherMAC)), change(200, planned(askerMAC)),
		}, 0, 0},
	} {
		doubled, unclaimed := rehearse(t, tt.first, tt.events...)
		near := func(got, want float64) bool { return got > want-1 && got < want+1 }
		if !near(doubled, tt.doubled) || !near(unclaimed, tt.unclaimed) {
			t.Errorf("%s: %.1f s with two owners, want %.0f; %.1f s with none, want %.0f", tt.name, doubled, tt.doubled, unclaimed, tt.unclaimed)
		}
	}
}

// foreignMAC belongs to a foreign machine.
var foreignMAC = lb.MAC{0x02, 0x54, 0, 0, 0, 0x01}

// TestAnnouncement: only what tells all neighbours counts for the audit.
func TestAnnouncement(t *testing.T) {
	for _, tt := range []struct {
		name  string
		proto protocol
		frame []byte
		want  bool
	}{
		{"gratuitous request", protocols()[0], claims()[0], true},
		{"question", protocols()[0], arpRequest(v4, nil), false},
		{"probe", protocols()[0], arpProbeBy(askerMAC), false},
		{"reply", protocols()[0], claim4(askerMAC), false},
		{"unsolicited advertisement", protocols()[1], claim6(askerMAC), true},
		{"answer", protocols()[1], solicitedNA(t, ourMAC, askerMAC, askerMAC, true), false},
		{"solicitation", protocols()[1], ns(v6, nil), false},
	} {
		if m, out := tt.proto.parse(tt.frame, ourMAC); out != answered || m.isAnnouncement() != tt.want {
			t.Errorf("%s is an announcement: %v, %v", tt.name, m.isAnnouncement(), out)
		}
	}
}

// BenchmarkAudit checks 20,000 addresses, and handles one announcement among them.
func BenchmarkAudit(b *testing.B) {
	r := newFakeLAN(eth0).responder()
	d := Desired{Speakers: three, Owners: map[netip.Addr][][6]byte{}}
	for _, a := range manyAddresses(20_000) {
		d.Owners[a.Address] = [][6]byte{askerMAC}
	}
	r.Set(d)
	a := newAudit(r)
	a.turn()
	one := address4(10<<24 + 100)
	b.Run("walk", func(b *testing.B) {
		for b.Loop() {
			a.walk(time.Minute)
		}
	})
	b.Run("claim", func(b *testing.B) {
		for b.Loop() {
			a.claim(one, askerMAC, time.Minute)
		}
	})
	b.Run("plan", func(b *testing.B) {
		for b.Loop() {
			r.Set(d)
			a.table = nil
			a.follow(r.table.Load(), time.Minute)
		}
	})
}
