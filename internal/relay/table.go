package relay

import (
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// table is one family's table in the kernel.
type table struct {
	*nft.Owned[*image]
	relayer *Relayer
	family  *family
	layout  *nft.Layout
	// course of each desired relay as the kernel's table has it. Relayer.mu guards it.
	course map[netip.Addr]course
}

// image is what a table is to hold: relays whose links have these indexes, and whose courses these are.
type image struct {
	layout  *nft.Layout
	of      *Desired
	indexes map[string]int
	course  map[netip.Addr]course
}

// course is what is known of one relay in the kernel.
type course struct {
	// start is the relay's Start; zero for one of an earlier run.
	start time.Time
	// ends is no more than a tick after the kernel ends the relay: the time as of the last listing, which packets since
	// then put off. A listing while the kernel resizes a set may miss elements, and they end no relay.
	ends time.Time
	// ended: no packet used the relay for the idle time, and the kernel has ended it.
	ended bool
}

// tick is the kernel's coarsest one, in which it counts the time to the end of an element (CONFIG_HZ of 100).
const tick = 10 * time.Millisecond

func newTable(r *Relayer, f *family) *table {
	t := &table{relayer: r, family: f, layout: f.layout(r.config.IdleTime)}
	t.Owned = nft.NewOwned(nft.Config[*image]{
		Log:           r.config.Log.With("family", f.name),
		Table:         t.layout.Table,
		Image:         t.image,
		Observed:      t.seen,
		AuditInterval: r.config.IdleTime / 3,
		Applied: func(img *image) {
			r.mu.Lock()
			t.course = img.course
			r.mu.Unlock()
			r.publishEnded()
		},
	})

	return t
}

// image returns what the table is to hold; nil if no table is needed.
func (t *table) image(*image) *image {
	t.relayer.mu.Lock()
	defer t.relayer.mu.Unlock()
	d := t.relayer.desired
	if d == nil {
		return nil
	}

	img := &image{t.layout, d, t.relayer.indexes, make(map[netip.Addr]course)}
	for _, one := range d.Relays.All() {
		if !t.has(one) {
			continue
		}

		c, known := t.course[one.Address]
		if !known || !one.Start.IsZero() && !one.Start.Equal(c.start) {
			c = course{start: one.Start, ends: time.Now().Add(t.relayer.config.IdleTime)}
		}

		img.course[one.Address] = c
	}

	if !d.Expect && len(img.course) == 0 {
		return nil
	}

	return img
}

// Permanent implements nft.Image.
func (img *image) Permanent() *nft.Layout { return img.layout }

// From implements nft.Image.
func (img *image) From(old *image) nft.Change {
	if old == nil {
		old = &image{of: &Desired{}}
	}
	return nft.Diff(old.elements(), img.elements())
}

// lasts reports whether the table has a relay, and it has not ended.
func (img *image) lasts(one lb.Relay) bool {
	c, has := img.course[one.Address]
	_, up := img.indexes[one.Link]
	return has && up && !c.ended
}

// elements are those of the table.
//
//	relays    relayed address: address of the former owner
//	links     relayed address: index of the link to the former owner
//	used      relayed address, unless the relay has ended: no value
//	speakers  MAC: no value
func (img *image) elements() (list nft.Elements) {
	for _, one := range img.of.Relays.All() {
		c, has := img.course[one.Address]
		index, up := img.indexes[one.Link]
		if !has || !up {
			continue
		}

		key := string(one.Address.AsSlice())
		list.Put(relaysMap, key, string(one.Via.WithZone("").AsSlice()))
		list.Put(linksMap, key, string(nft.Native(uint32(index))))
		if !c.ended {
			list.Put(usedSet, key, c.mark())
		}
	}

	for mac := range img.of.Speakers {
		list.Put(speakersSet, string(mac[:]), "")
	}

	return list
}

// has reports whether the table holds a relay.
func (t *table) has(one lb.Relay) bool { return t.family.Has(one.Address) && t.family.Has(one.Via) }

// mark tells a relay from one of the same address that began at another time, as the value of its element in used. The
// kernel does not keep it: an element with another mark replaces the one before, and has the whole idle time ahead.
func (c course) mark() string {
	if c.start.IsZero() {
		return ""
	}
	return c.start.UTC().String()
}

// seen learns the courses from what the table holds. A relay that is not in used has ended if its time is over, and one
// of an earlier run, too. It adds the marks, which the kernel does not keep.
func (t *table) seen(is *nft.Content) {
	t.relayer.mu.Lock()
	defer t.relayer.mu.Unlock()
	courses := make(map[netip.Addr]course, len(t.course))
	now := time.Now()
	for a, c := range t.course {
		c.ended = !now.Add(tick).Before(c.ends)
		courses[a] = c
	}

	for _, m := range is.Elements {
		if a, _ := netip.AddrFromSlice([]byte(m.Key)); m.Set == relaysMap && courses[a] == (course{}) {
			courses[a] = course{ended: true}
		}
	}

	for i := range is.Elements {
		m := &is.Elements[i]
		if m.Set != usedSet {
			continue
		}

		a, _ := netip.AddrFromSlice([]byte(m.Key))
		c := courses[a]
		c.ends, c.ended = is.Ends[nft.Element{Set: usedSet, Key: m.Key}], false
		courses[a], m.Value = c, c.mark()
	}

	t.course = courses
}
