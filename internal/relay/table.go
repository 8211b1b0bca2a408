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
	// lifetimes are the lifetimes of the kernel's relays, by relayed address. Relayer.mu guards the field.
	lifetimes map[netip.Addr]lifetime
}

// image is the desired content of a table.
type image struct {
	layout  *nft.Layout
	desired *Desired
	// indexes are the indexes of links, by name.
	indexes map[string]int
	// lifetimes has the relays of the table's family, by relayed address.
	lifetimes map[netip.Addr]lifetime
}

// lifetime is the time for which the kernel relays an address.
type lifetime struct {
	// start is the relay's Start; zero for a relay of an earlier process.
	start time.Time
	// expires is the time when the relay ends, as of the last listing. Later packets postpone it. The kernel ends the
	// relay at most a tick before.
	expires time.Time
	// ended reports whether the kernel has ended the relay, because no packet used it for the idle time.
	ended bool
}

// tick is the kernel's coarsest unit for the expiry of elements (CONFIG_HZ of 100).
const tick = 10 * time.Millisecond

// newTable returns the table of a family.
func newTable(r *Relayer, f *family) *table {
	t := &table{
		relayer: r,
		family:  f,
		layout:  f.layout(r.config.IdleTime),
	}
	t.Owned = nft.NewOwned(nft.Config[*image]{
		Log:           r.config.Log.With("family", f.name),
		Table:         t.layout.Table,
		Image:         t.image,
		Observed:      t.observe,
		AuditInterval: r.config.IdleTime / 3,
		Applied: func(img *image) {
			r.mu.Lock()
			t.lifetimes = img.lifetimes
			r.mu.Unlock()
			r.publishEnded()
		},
	})

	return t
}

// image returns the desired content of the table; nil if no table is needed.
func (t *table) image(*image) *image {
	t.relayer.mu.Lock()
	defer t.relayer.mu.Unlock()
	d := t.relayer.desired
	if d == nil {
		return nil
	}

	img := &image{
		layout:    t.layout,
		desired:   d,
		indexes:   t.relayer.indexes,
		lifetimes: make(map[netip.Addr]lifetime),
	}
	for _, relay := range d.Relays.All() {
		if !t.canRelay(relay) {
			continue
		}

		life, known := t.lifetimes[relay.Address]
		restarts := !relay.Start.IsZero() && !relay.Start.Equal(life.start)
		if !known || restarts {
			life = lifetime{start: relay.Start, expires: time.Now().Add(t.relayer.config.IdleTime)}
		}

		img.lifetimes[relay.Address] = life
	}

	if !d.Expect && len(img.lifetimes) == 0 {
		return nil
	}

	return img
}

// Permanent implements nft.Image.
func (img *image) Permanent() *nft.Layout { return img.layout }

// From implements nft.Image.
func (img *image) From(old *image) nft.Change {
	if old == nil {
		old = &image{desired: &Desired{}}
	}
	return nft.Diff(old.elements(), img.elements())
}

// isActive reports whether the table has a relay that has not ended.
func (img *image) isActive(relay lb.Relay) bool {
	life, ok := img.lifetimes[relay.Address]
	_, isUp := img.indexes[relay.Link]
	return ok && isUp && !life.ended
}

// elements returns the elements of the table.
//
//	relays    relayed address: address of the former owner
//	links     relayed address: index of the link to the former owner
//	used      relayed address, unless the relay has ended: no value
//	speakers  MAC: no value
func (img *image) elements() (list nft.Elements) {
	for _, relay := range img.desired.Relays.All() {
		life, ok := img.lifetimes[relay.Address]
		index, isUp := img.indexes[relay.Link]
		if !ok || !isUp {
			continue
		}

		key := string(relay.Address.AsSlice())
		list.Put(relaysMap, key, string(relay.Via.WithZone("").AsSlice()))
		list.Put(linksMap, key, string(nft.Native(uint32(index))))
		if !life.ended {
			list.Put(usedSet, key, life.mark())
		}
	}

	for mac := range img.desired.Speakers {
		list.Put(speakersSet, string(mac[:]), "")
	}

	return list
}

// canRelay reports whether both addresses of a relay are of the table's family.
func (t *table) canRelay(relay lb.Relay) bool {
	return t.family.Has(relay.Address) && t.family.Has(relay.Via)
}

// mark returns the Value of the relay's element in used, which differs between two relays of one address. The kernel
// does not store it. An element with another mark replaces the older one, and has the whole idle time before it.
func (l lifetime) mark() string {
	if l.start.IsZero() {
		return ""
	}
	return l.start.UTC().String()
}

// observe reads the lifetimes of relays from the kernel's table, and adds the marks to the content.
//
// A relay without an element in used has ended if it has expired, or if an earlier process made it. A relay that has
// not expired goes on: a listing may miss elements while the kernel resizes a set.
func (t *table) observe(content *nft.Content) {
	t.relayer.mu.Lock()
	defer t.relayer.mu.Unlock()

	lifetimes := make(map[netip.Addr]lifetime, len(t.lifetimes))
	soon := time.Now().Add(tick)
	for address, life := range t.lifetimes {
		life.ended = !soon.Before(life.expires)
		lifetimes[address] = life
	}

	for _, e := range content.Elements {
		address, _ := netip.AddrFromSlice([]byte(e.Key))
		if e.Set == relaysMap && lifetimes[address] == (lifetime{}) {
			lifetimes[address] = lifetime{ended: true}
		}
	}

	for i := range content.Elements {
		e := &content.Elements[i]
		if e.Set != usedSet {
			continue
		}

		address, _ := netip.AddrFromSlice([]byte(e.Key))
		life := lifetimes[address]
		life.ended = false
		life.expires = content.Ends[nft.Element{Set: usedSet, Key: e.Key}]
		lifetimes[address] = life
		e.Value = life.mark()
	}

	t.lifetimes = lifetimes
}
