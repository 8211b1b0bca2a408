package layer2

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

const (
	// auditInterval is how often the audit listens, and so how exact its times are.
	auditInterval = 100 * time.Millisecond
	// walkInterval is how often all addresses are looked at.
	walkInterval = 5 * time.Second
	// settleTime is longer than a planned move takes: nodes plan it within a second of each
	// other, and who had the address answers for it for LingerTime at most.
	settleTime = 5 * time.Second
	// auditMargin is how much later than RefreshMax a busy node may announce.
	auditMargin = 10 * time.Second
)

// auditTotals are address-seconds, in nanoseconds.
type auditTotals struct{ doubled, unclaimed [families]atomic.Int64 }

// audit compares what speakers announce with the plan. It only listens, to what they
// tell all neighbours anyway: gratuitous ARP requests, and unsolicited advertisements.
// Answers to single machines it does not hear, so that a stand-in is none of its business.
//
// A double owner: while the plan has not changed here, another speaker than the owner
// was heard to announce the address, and so was the owner, or is this node itself and
// goes on. It is counted from the later one's first announcement to the earlier one's
// last, so far as each is heard again within RefreshMax. Two others must both be heard
// over more than settleTime; of a foreign announcement against this node's own all
// counts once settleTime is over and the address still here. What is heard within
// settleTime of a change of plan is of a move, and counts for nothing. So it is a lower
// bound: two owners who find out before one of them repeats its announcement are not seen.
//
// An unclaimed address: the plan says that another node announces it, from links of which
// at least one is heard here to announce something of the family, and for two of the
// longest intervals the address was not: what one lost frame cannot cause. What is
// beyond that counts. The two intervals start over with each change of owner.
//
// It belongs to one goroutine.
type audit struct {
	r      *Responder
	start  time.Time
	totals *auditTotals

	table   *table
	owners  *map[netip.Addr][][6]byte
	records map[netip.Addr]*record
	// shared are the MACs of speakers that were heard to announce, with where and since when.
	shared [families]map[link.MAC]hearing
	// own are the MACs of this node.
	own  map[link.MAC]bool
	ears map[int][families]*ear
	// turned, linked and walked are when each was done last.
	turned, linked, walked moment
	// refused are the links that could not be listened to.
	refused map[string]bool
	// overdue: an address was unclaimed at the last walk.
	overdue bool
}

// moment is time since the start of an audit, which has its first at one second: 0 is never.
type moment = time.Duration

// record is an address of the plan.
type record struct {
	// macs are the owner's, where it is another node; status is ours, where we are.
	macs   [][6]byte
	status *status
	// since when the plan is so.
	since moment
	// owner and other are when the owner and other speakers were heard to announce it, and
	// by is the last of these.
	owner, other period
	by           link.MAC
	// doubled is until when it is counted.
	doubled moment
}

// period is from the first to the last of announcements that follow each other.
type period struct{ first, last moment }

// hearing is since when a machine is heard on a link.
type hearing struct {
	index int
	since moment
}

func newAudit(r *Responder) *audit {
	return &audit{
		r: r, start: r.now().Add(-time.Second), totals: &r.counts.audit, records: make(map[netip.Addr]*record),
		shared: [families]map[link.MAC]hearing{{}, {}}, ears: make(map[int][families]*ear), refused: make(map[string]bool),
	}
}

// audit listens until the context ends.
func (r *Responder) audit(ctx context.Context) {
	a := newAudit(r)
	defer a.close()
	turn := time.NewTicker(auditInterval)
	defer turn.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-turn.C:
			a.turn()
		}
	}
}

// turn follows the plan first: what was heard since is judged by it.
func (a *audit) turn() {
	now := a.r.now().Sub(a.start)
	stalled := a.turned > 0 && now-a.turned >= settleTime
	a.turned = now
	a.follow(a.r.table.Load(), a.r.owners.Load(), now)
	if now-a.linked >= a.r.timers.CheckInterval {
		a.attach(now)
		a.linked = now
	}
	lost := a.listen(now)
	if stalled || lost {
		a.restart(now)
	}
	if now-a.walked >= walkInterval {
		a.walk(now)
	}
}

// follow takes a plan. What changes starts over.
func (a *audit) follow(t *table, owners *map[netip.Addr][][6]byte, now moment) {
	if t == a.table && owners == a.owners {
		return
	}
	a.table, a.owners = t, owners
	planned := len(*owners)
	for addr, macs := range *owners {
		a.plan(addr, macs, nil, now)
	}
	for addr, e := range t.entries {
		if _, elsewhere := (*owners)[addr]; !elsewhere {
			a.plan(addr, nil, e.status, now)
			planned++
		}
	}
	if len(a.records) == planned {
		return
	}
	for addr, rec := range a.records {
		if _, elsewhere := (*owners)[addr]; !elsewhere && t.entries[addr] == nil {
			a.account(addr, rec, now)
			delete(a.records, addr)
		}
	}
}

func (a *audit) plan(addr netip.Addr, macs [][6]byte, s *status, now moment) {
	rec := a.records[addr]
	if rec != nil && rec.status == s && slices.Equal(rec.macs, macs) {
		return
	}
	if rec != nil {
		a.account(addr, rec, now)
	}
	a.records[addr] = &record{macs: macs, status: s, since: now}
}

// claim deals with a speaker that announces an address.
func (a *audit) claim(index int, addr netip.Addr, mac link.MAC, now moment) {
	if !a.table.speakers[mac] || a.own[mac] {
		return
	}
	family := number(lb.FamilyOf(addr))
	if _, known := a.shared[family][mac]; !known {
		a.shared[family][mac] = hearing{index, now}
	}
	rec := a.records[addr]
	switch {
	case rec == nil:
		return
	case slices.Contains(rec.macs, [6]byte(mac)):
		a.account(addr, rec, now)
		rec.owner.extend(now, a.gap())
	case now-rec.since < settleTime || rec.status != nil && !a.announced(rec):
		return
	default:
		rec.other.extend(now, a.gap())
		rec.by = mac
	}
	a.compare(addr, rec, now)
}

// gap is the longest time between two announcements of who goes on.
func (a *audit) gap() time.Duration { return a.r.timers.RefreshMax + auditMargin }

// announced reports whether this node announces an address that it is to.
func (a *audit) announced(rec *record) bool { return rec.status.is() == ours && a.r.lease.valid() }

func (s *period) extend(now moment, gap time.Duration) {
	if s.last == 0 || now-s.last > gap {
		s.first = now
	}
	s.last = now
}

// compare counts how long an address has had two owners, as far as that is proven.
func (a *audit) compare(addr netip.Addr, rec *record, now moment) {
	if rec.other.last == 0 {
		return
	}
	owner, proven := rec.owner, min(rec.owner.last, rec.other.last)
	if rec.status != nil {
		if !a.announced(rec) {
			return
		}
		owner, proven = period{rec.since, now}, now
	}
	begin, end := max(owner.first, rec.other.first), min(owner.last, rec.other.last)
	if proven-begin < settleTime || end <= max(begin, rec.doubled) {
		return
	}
	if rec.doubled < begin {
		a.r.log.Warn("two nodes announce an address", "address", addr, "here", rec.status != nil, "mac", rec.by)
	}
	a.totals.doubled[number(lb.FamilyOf(addr))].Add(int64(end - max(begin, rec.doubled)))
	rec.doubled = end
}

// account counts how long an address has been unclaimed since the last walk.
func (a *audit) account(addr netip.Addr, rec *record, now moment) (overdue bool) {
	family := number(lb.FamilyOf(addr))
	var heard moment
	for _, mac := range rec.macs {
		if h, known := a.shared[family][mac]; known && (heard == 0 || h.since < heard) {
			heard = h.since
		}
	}
	if heard == 0 {
		return false // we are the owner, or do not hear it
	}
	from := max(rec.since, rec.owner.last, heard) + 2*a.r.timers.RefreshMax + auditMargin
	from = max(from, a.walked)
	if now <= from {
		return false
	}
	a.totals.unclaimed[family].Add(int64(now - from))
	return true
}

// walk looks at all addresses.
func (a *audit) walk(now moment) {
	overdue, one := 0, netip.Addr{}
	for addr, rec := range a.records {
		if a.account(addr, rec, now) {
			overdue, one = overdue+1, addr
		}
		if rec.status != nil {
			a.compare(addr, rec, now)
		}
	}
	a.walked = now
	if overdue > 0 && !a.overdue {
		a.r.log.Warn("addresses are not announced by the nodes that are to", "addresses", overdue, "one", one)
	}
	a.overdue = overdue > 0
}

// restart forgets what was heard: the audit did not run for a while, or frames were
// lost on the way to it, and it does not know what it missed.
func (a *audit) restart(now moment) {
	for _, rec := range a.records {
		*rec = record{macs: rec.macs, status: rec.status, since: now}
	}
	for i := range a.shared {
		clear(a.shared[i])
	}
}
