package relay

import (
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// course is what is known of one relay in the kernel.
type course struct {
	// start is the relay's Start; zero for one of an earlier run.
	start time.Time
	// ends is no more than a tick after the kernel ends the relay: the time as of the last listing, which packets since
	// then put off.
	ends time.Time
	// ended: no packet used the relay for the idle time, and the kernel has ended it.
	ended bool
	// begins: the kernel does not have it yet with the whole idle time ahead.
	begins bool
}

// tick is the kernel's coarsest one, in which it counts the time to the end of an element (CONFIG_HZ of 100).
const tick = 10 * time.Millisecond

// learn notes what a listing shows of the relays. An address that is missing in used before its time was
// deleted by somebody else; one that is missing later, or of an earlier run, has expired. If there is no table, the listing is empty.
func (t *table) learn(seen *listing, now time.Time) {
	for at := range seen.is {
		if _, known := t.course[at.key]; at.set == relaysMap && !known {
			t.course[at.key] = course{ends: now}
		}
	}
	for key, c := range t.course {
		ends, there := seen.ends[key]
		switch {
		case c.ended, c.begins:
		case there:
			c.ends = ends
		case !now.Add(tick).Before(c.ends):
			c.ended = true
		}
		t.course[key] = c
	}
}

// content returns the elements that the table is to have, given the indexes of links by name. It notes which relays begin,
// and forgets those that are not desired.
func (t *table) content(d *Desired, indexes map[string]int, idle time.Duration) content {
	out, was := content{}, t.course
	t.course = make(map[string]course, len(was))
	for _, one := range d.Relays {
		if !t.family.Has(one.Address) || !t.family.Has(one.Via) {
			continue
		}
		key := addressKey(one.Address)
		c, known := was[key]
		if !known || !one.Start.IsZero() && !one.Start.Equal(c.start) {
			c = course{start: one.Start, ends: time.Now().Add(idle), begins: true}
		}
		t.course[key] = c
		index, up := indexes[one.Link]
		if !up {
			continue
		}
		out[elementKey{relaysMap, key}] = string(one.Via.WithZone("").AsSlice())
		out[elementKey{linksMap, key}] = string(nft.Native(uint32(index)))
		if !c.ended {
			out[elementKey{usedSet, key}] = ""
		}
	}
	for mac := range d.Speakers {
		out[elementKey{speakersSet, string(mac[:])}] = ""
	}
	return out
}

// begun notes that the kernel has every relay that the table is to have.
func (t *table) begun() {
	for key, c := range t.course {
		if c.begins {
			c.begins = false
			t.course[key] = c
		}
	}
}

// damaged reports whether a listing shows that others changed the table. An address in used may be left of a packet
// that met the end of its relay.
func (t *table) damaged(is content) bool {
	for at, value := range t.actual {
		now, has := is[at]
		c, known := t.course[at.key]
		expired := at.set == usedSet && (!known || c.ended || c.begins)
		if has && now != value || !has && !expired {
			return true
		}
	}
	for at := range is.without(t.actual) {
		if at.set != usedSet {
			return true
		}
	}
	return false
}

func addressKey(a netip.Addr) string { return string(a.AsSlice()) }

// courseOf returns what is known of a relay.
func (r *Relayer) courseOf(one lb.Relay) (c course) {
	for _, t := range r.tables {
		if t.family.Has(one.Address) {
			c = t.course[addressKey(one.Address)]
		}
	}
	return c
}
