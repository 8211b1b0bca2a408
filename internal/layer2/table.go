package layer2

import (
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Desired is the whole desired state of a Responder.
type Desired struct {
	// Announcements are the addresses to answer for.
	Announcements lb.Map[netip.Addr, *lb.Announcement]
	// Yield are addresses that another node owns. If one was answered here,
	// it is answered until the new owner is heard.
	Yield lb.Map[netip.Addr, struct{}]
	// Speakers are the MACs of the links of all speakers, including this one: their claims
	// are no conflicts.
	Speakers map[lb.MAC]bool
	// Owners are the nodes that announce addresses. A machine that asks for an address of another node is recorded as a
	// foreign machine.
	Owners lb.Map[netip.Addr, string]
}

// addressTable is the desired set, prepared for lookups. It is immutable, so readers need no
// lock; only the status of an address changes.
type addressTable struct {
	// desired is the set of which the table was made.
	desired Desired
	entries lb.Map[netip.Addr, *tableEntry]
	// linkUses counts the addresses that name each link.
	linkUses map[string]int
	// releasedAt are the times at which addresses were released that no other machine took since, as far as this node
	// knows.
	releasedAt map[netip.Addr]time.Time
	// handovers are the addresses that are answered only until their new owner is heard.
	handovers []netip.Addr
	// isOffered reports whether Offer was called since: any address may then be in the phase offered.
	isOffered atomic.Bool
}

// reclaimTime is the time for which a released address counts as free when this node gets it back, for example because
// its Service had no endpoint for a moment.
const reclaimTime = time.Minute

// tableEntry is one address.
type tableEntry struct {
	// links are the names of the links that answer for it, sorted. None means all usable links.
	links []string
	// mac is the MAC to answer with, zero for the link's own.
	mac lb.MAC
	*status
}

// isSame reports whether two entries of an address are the same.
func (e *tableEntry) isSame(other *tableEntry) bool {
	return e.status == other.status && e.mac == other.mac && slices.Equal(e.links, other.links)
}

// newTable returns the table of a desired set. It takes the entries of the old table for addresses that do not differ
// between before and d. Statuses continue, except after a lapse of the lease: then all owned addresses start from the
// beginning.
func newTable(d, before Desired, old *addressTable, lapsed bool, at time.Time) *addressTable {
	t := &addressTable{
		desired:    d,
		linkUses:   make(map[string]int),
		releasedAt: make(map[netip.Addr]time.Time),
	}
	maps.Copy(t.linkUses, old.linkUses)

	affected := old.affectedAddresses(before, d, lapsed)
	t.entries = old.entries.With(slices.Values(affected), func(a netip.Addr) (*tableEntry, bool) {
		e := t.newEntry(a, old, lapsed)
		return e, e != nil
	})

	old.entries.Changes(t.entries, func(_ netip.Addr, oldEntry, newEntry *tableEntry, existed, exists bool) {
		if existed {
			t.countLinks(oldEntry.links, -1)
		}

		if exists {
			t.countLinks(newEntry.links, 1)
		}
	})

	if !lapsed {
		t.recordReleases(old, at)
	}

	return t
}

// affectedAddresses returns the addresses whose entry may differ in the table after this one: all of them after a lapse
// or an offer.
func (t *addressTable) affectedAddresses(before, d Desired, lapsed bool) []netip.Addr {
	if lapsed || t.isOffered.Load() {
		return slices.AppendSeq(slices.Collect(t.entries.Keys()), d.Announcements.Keys())
	}

	affected := slices.Clone(t.handovers)
	before.Announcements.Changes(d.Announcements, func(a netip.Addr, _, _ *lb.Announcement, _, _ bool) {
		affected = append(affected, a)
	})

	return affected
}

// newEntry returns the entry of an address: the old one if it is the same, nil if the address is not answered.
func (t *addressTable) newEntry(addr netip.Addr, old *addressTable, lapsed bool) *tableEntry {
	before := old.entries.Of(addr)
	announcement := t.desired.Announcements.Of(addr)
	if announcement != nil && addr.IsValid() && !addr.IsUnspecified() && !addr.IsMulticast() {
		return t.announcedEntry(addr, announcement, old, lapsed)
	}

	if before == nil || lapsed || !t.desired.Yield.Has(addr) {
		return nil
	}

	// It was answered here and belongs to another node.
	switch before.current() {
	case owned, standingIn, offered:
		before = &tableEntry{
			links:  before.links,
			mac:    before.mac,
			status: before.successor(handingOver),
		}
	case handingOver:
	default:
		return nil
	}

	t.handovers = append(t.handovers, addr)
	return before
}

// announcedEntry returns the entry of an address with an announcement, the old one if it is the same.
func (t *addressTable) announcedEntry(
	addr netip.Addr,
	a *lb.Announcement,
	old *addressTable,
	lapsed bool,
) *tableEntry {
	links := slices.Compact(slices.Sorted(slices.Values(a.Links)))
	e := &tableEntry{
		links:  links,
		mac:    a.MAC,
		status: old.nextStatus(addr, *a, lapsed),
	}
	before := old.entries.Of(addr)
	if before != nil && before.isSame(e) {
		return before
	}

	return e
}

// countLinks adds n to the number of addresses that name each of the links.
func (t *addressTable) countLinks(links []string, n int) {
	for _, l := range links {
		t.linkUses[l] += n
		if t.linkUses[l] == 0 {
			delete(t.linkUses, l)
		}
	}
}

// nextStatus returns the status that an address has in the table after this one: a new one, or the present one.
func (t *addressTable) nextStatus(addr netip.Addr, a lb.Announcement, lapsed bool) *status {
	first := owned
	switch {
	case a.MAC != lb.MAC{}:
		first = standingIn
	case a.Probe:
		first = probing
	}

	e := t.entries.Of(addr)
	if e == nil {
		s := newStatus(first)
		s.releasedAt = t.releasedAt[addr]
		return s
	}

	p := e.current()
	wasLeft := p == handingOver || p == offered || p == released
	switch {
	case (p == standingIn) != (first == standingIn):
		return newStatus(first)
	case p == owned && lapsed:
		return e.successor(owned)
	case wasLeft && first == probing:
		// It was announced, and comes back.
		return e.successor(owned)
	case wasLeft:
		return e.successor(first)
	}

	return e.status
}

// recordReleases notes which addresses this node owned without a conflict, and no node owns at present.
func (t *addressTable) recordReleases(old *addressTable, at time.Time) {
	isFree := func(addr netip.Addr) bool { return !t.entries.Has(addr) && !t.isElsewhere(addr) }
	for addr, since := range old.releasedAt {
		if isFree(addr) && at.Sub(since) < reclaimTime {
			t.releasedAt[addr] = since
		}
	}

	for _, addr := range old.entries.Beyond(t.entries) {
		e := old.entries.Of(addr)
		hasConflicts := len(*e.conflicts.Load()) > 0
		if isFree(addr) && e.current() == owned && !hasConflicts {
			t.releasedAt[addr] = at
		}
	}
}

// entryOn returns the entry of an address if the link answers for it, else nil.
func (t *addressTable) entryOn(addr netip.Addr, l *lb.Interface) *tableEntry {
	e := t.entries.Of(addr)
	if e == nil {
		return nil
	}

	answersAll := len(e.links) == 0 && l.Usable()
	if answersAll || slices.Contains(e.links, l.Name) {
		return e
	}

	return nil
}

// addressesIn returns the addresses in one of the phases handingOver and offered.
func (t *addressTable) addressesIn(p phase) (out []netip.Addr) {
	candidates := slices.Values(t.handovers)
	if t.isOffered.Load() {
		candidates = t.entries.Keys()
	}

	for addr := range candidates {
		if t.entries.Of(addr).current() == p {
			out = append(out, addr)
		}
	}

	return out
}

// isElsewhere reports whether another node announces an address.
func (t *addressTable) isElsewhere(addr netip.Addr) bool {
	return t.desired.Owners.Has(addr) && !t.entries.Has(addr)
}
