package layer2

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// auditInterval is how often the audit listens, which bounds the precision of its times.
	auditInterval = 100 * time.Millisecond
	// walkInterval is how often the audit checks all addresses.
	walkInterval = 5 * time.Second
	// settleTime exceeds the duration of a planned move: nodes plan it within a second of each
	// other, and a former owner that still answers announces nothing.
	settleTime = 5 * time.Second
	// auditMargin is how much later than the longest interval a busy node may announce.
	auditMargin = 10 * time.Second
)

// auditTotals are address-seconds, in nanoseconds.
type auditTotals struct{ doubled, unclaimed [families]atomic.Int64 }

// audit compares the announcements of speakers with the plan. It only listens, to what
// they send to all neighbours anyway: gratuitous ARP requests and unsolicited NAs. It
// does not see answers to single machines, so stand-ins do not concern it.
//
// Double owner: without a change of plan here, both the owner and another speaker
// announce the address. The owner may be this node. The time counts from the first
// announcement of the later one to the last of the earlier one, as long as each repeats
// its announcement within the longest interval. Two other nodes must both announce for longer than
// settleTime. If this node is the owner, everything counts once settleTime has passed
// and the address is still here. Announcements within settleTime of a change of plan
// belong to a move and do not count. So the result is a lower bound: it misses double
// owners that end before one of them repeats its announcement.
//
// Unclaimed address: by the plan another node announces it, and we hear at least one
// of that node's links announce something of the family, but not this address, for two
// of the longest intervals. One lost frame cannot cause that. Only the time beyond these
// two intervals counts. They start over with each change of owner.
//
// It belongs to one goroutine.
type audit struct {
	r      *Responder
	start  time.Time
	totals *auditTotals

	table   *table
	records map[netip.Addr]*record
	// shared are the MACs of announcing speakers, with since when we hear them.
	shared [families]map[lb.MAC]moment
	// turned and walked are when each was last done.
	turned, walked moment
	// overdue: at the last walk an address was unclaimed.
	overdue bool
}

// moment is time since the start of an audit. It starts at one second: 0 is never.
type moment = time.Duration

// record is an address of the plan.
type record struct {
	// macs are the owner's if that is another node; status is ours if we are the owner.
	macs   [][6]byte
	status *status
	// since is when the plan last changed.
	since moment
	// owner and other are when the owner and other speakers announced it; by is the last
	// of those speakers.
	owner, other period
	by           lb.MAC
	// doubled is the end of the time counted so far.
	doubled moment
}

// period is the time from the first to the last of consecutive announcements.
type period struct{ first, last moment }

// claim is a speaker's announcement of an address.
type claim struct {
	addr netip.Addr
	mac  lb.MAC
}

// maxClaims bounds the queue from readers to the audit between two of its turns: the bursts of sixteen links at once.
const maxClaims = 1 << 14

// announced never blocks a reader.
func (r *Responder) announced(c claim) {
	select {
	case r.claims <- c:
	default:
		r.missed.Store(true)
	}
}

func newAudit(r *Responder) *audit {
	return &audit{
		r: r, start: r.now().Add(-time.Second), totals: &r.counts.audit, records: make(map[netip.Addr]*record),
		shared: [families]map[lb.MAC]moment{{}, {}},
	}
}

// audit listens until the context ends.
func (r *Responder) audit(ctx context.Context) {
	a := newAudit(r)
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

// turn first follows the plan, and then compares what arrived since with it.
func (a *audit) turn() {
	now := a.r.now().Sub(a.start)
	stalled := a.turned > 0 && now-a.turned >= settleTime
	a.turned = now
	a.follow(a.r.table.Load(), now)
	for range len(a.r.claims) {
		c := <-a.r.claims
		a.claim(c.addr, c.mac, now)
	}
	if missed := a.r.missed.Swap(false); missed || stalled {
		a.restart(now)
	}
	if now-a.walked >= walkInterval {
		a.walk(now)
	}
}

// follow adopts a plan. Records that change start over.
func (a *audit) follow(t *table, now moment) {
	if t == a.table {
		return
	}
	a.table = t
	for addr, macs := range t.owners {
		a.plan(addr, macs, nil, now)
	}
	for addr, e := range t.entries {
		if _, handing := t.owners[addr]; !handing {
			a.plan(addr, nil, e.status, now)
		}
	}
	for addr, rec := range a.records {
		if _, elsewhere := t.owners[addr]; !elsewhere && t.entries[addr] == nil {
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

// claim handles a speaker's announcement of an address.
func (a *audit) claim(addr netip.Addr, mac lb.MAC, now moment) {
	if !a.table.speakers[mac] || a.r.own(mac) {
		return
	}
	family := number(lb.FamilyOf(addr))
	if _, known := a.shared[family][mac]; !known {
		a.shared[family][mac] = now
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

// longest is the longest time between two announcements of a continuing owner, as if it had all addresses.
func (a *audit) longest() time.Duration {
	_, longest := a.r.timers.refresh(len(a.records))
	return longest
}

// gap is the longest time from one announcement to the arrival of the next one.
func (a *audit) gap() time.Duration { return a.longest() + auditMargin }

// announced reports whether this node announces an address that it owns.
func (a *audit) announced(rec *record) bool { return rec.status.is() == ours && a.r.lease.valid() }

func (s *period) extend(now moment, gap time.Duration) {
	if s.last == 0 || now-s.last > gap {
		s.first = now
	}
	s.last = now
}

// compare counts how long an address provably had two owners.
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
		if h, known := a.shared[family][mac]; known && (heard == 0 || h < heard) {
			heard = h
		}
	}
	if heard == 0 {
		return false // we are the owner, or cannot hear the owner
	}
	from := max(rec.since, rec.owner.last, heard) + 2*a.longest() + auditMargin
	from = max(from, a.walked)
	if now <= from {
		return false
	}
	a.totals.unclaimed[family].Add(int64(now - from))
	return true
}

// walk checks all addresses.
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
		a.r.log.Warn("addresses are not announced by their owners", "addresses", overdue, "one", one)
	}
	a.overdue = overdue > 0
}

// restart forgets all observations: the audit did not run for a while or frames were
// lost, so it does not know what it missed.
func (a *audit) restart(now moment) {
	for _, rec := range a.records {
		*rec = record{macs: rec.macs, status: rec.status, since: now}
	}
	for i := range a.shared {
		clear(a.shared[i])
	}
}
