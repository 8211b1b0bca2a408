package ipam

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// cache holds the objects of one kind that a controller sees: what the watch has shown, which lags by any time,
// overlaid with its own writes and its reads past the watch. View of package k8s does the same.
type cache[T object] struct {
	list func(*world) *[]T
	// shows is the number of the world up to which the watch has shown changes.
	shows int
	own   map[lb.Key]written[T]
	// listed is the number of the world that a read past the watch showed, with the objects that existed then.
	listed  int
	existed map[string]bool
}

// written is an object as a write or a read past the watch returned it, with the number of the world that it is from.
// Gone: it was deleted.
type written[T object] struct {
	object T
	at     int
	gone   bool
}

// watch shows the changes up to a world. A deletion drops our writes of that object, but not the writes of a later
// object with its name.
func (c *cache[T]) watch(worlds []world, to int) {
	for ; c.shows < to; c.shows++ {
		for _, was := range deleted(*c.list(&worlds[c.shows]), *c.list(&worlds[c.shows+1])) {
			if w, stands := c.own[was.id()]; stands && (w.object.uid() == was.uid() || w.at <= was.at()) {
				delete(c.own, was.id())
			}
		}
	}
}

// deleted returns the objects that are not in the second list, or are others of the same name there.
func deleted[T object](before, after []T) []T {
	if len(before) == len(after) && (len(before) == 0 || &before[0] == &after[0]) {
		return nil
	}
	var out []T
	for i, j := 0, 0; i < len(before); i++ {
		for j < len(after) && byID(after[j], before[i]) < 0 {
			j++
		}
		if j == len(after) || after[j].uid() != before[i].uid() {
			out = append(out, before[i])
		}
	}
	return out
}

func (c *cache[T]) wrote(o T) { c.overlay(written[T]{o, o.at(), false}) }

// gone records that an object is deleted, as of a world.
func (c *cache[T]) gone(o T, at int) { c.overlay(written[T]{o, at, true}) }

func (c *cache[T]) overlay(w written[T]) {
	if before, stands := c.own[w.object.id()]; stands && w.at < before.at {
		return
	}
	if c.own == nil {
		c.own = map[lb.Key]written[T]{}
	}
	c.own[w.object.id()] = w
}

// refresh reads past the watch: all objects of the last world. What the watch shows of objects that were gone by then
// is hidden.
func (c *cache[T]) refresh(worlds []world) {
	c.listed, c.existed = len(worlds)-1, map[string]bool{}
	for _, o := range *c.list(&worlds[c.listed]) {
		c.existed[o.uid()] = true
		c.wrote(o)
	}
}

func (c *cache[T]) ghost(o T) bool {
	return c.existed != nil && o.at() <= c.listed && !c.existed[o.uid()]
}

// view returns the objects as the controller sees them.
func (c *cache[T]) view(worlds []world) []T {
	var out []T
	shown := *c.list(&worlds[c.shows])
	for _, o := range shown {
		switch w, stands := c.own[o.id()]; {
		case c.ghost(o):
		case !stands:
			out = append(out, o)
		case w.at <= o.at():
			delete(c.own, o.id())
			out = append(out, o)
		case !w.gone:
			out = append(out, w.object)
		}
	}
	for id, w := range c.own {
		switch {
		case get(shown, id) != nil && !c.ghost(*get(shown, id)):
		case w.at <= c.shows || c.ghost(w.object):
			delete(c.own, id) // the watch, or the read past it, does not show it
		case !w.gone:
			out = append(out, w.object)
		}
	}
	slices.SortFunc(out, byID)
	return out
}

// openWrite is a write without an answer, to the version of an object at a world.
type openWrite struct {
	at        int
	addresses []netip.Addr
}

// controller is one process. Its state is its caches and its writes without an answer.
type controller struct {
	open        map[objectID]openWrite
	services    cache[serviceObject]
	pools       cache[poolObject]
	floatingIPs cache[floatingObject]
	// namespaces is the number of the world that shows them.
	namespaces int
}

func newController() *controller {
	c := &controller{open: map[objectID]openWrite{}}
	c.services.list = func(w *world) *[]serviceObject { return &w.Services }
	c.pools.list = func(w *world) *[]poolObject { return &w.Pools }
	c.floatingIPs.list = func(w *world) *[]floatingObject { return &w.FloatingIPs }
	return c
}

// watch advances the cache of each kind as far as lag allows, at most to the present.
func (c *controller) watch(worlds []world, lag func(from, to int) int) {
	last := len(worlds) - 1
	c.services.watch(worlds, lag(c.services.shows, last))
	c.pools.watch(worlds, lag(c.pools.shows, last))
	c.floatingIPs.watch(worlds, lag(c.floatingIPs.shows, last))
	c.namespaces = lag(c.namespaces, last)
}

// refresh reads past the watches, as a new leader does.
func (c *controller) refresh(worlds []world) {
	c.services.refresh(worlds)
	c.pools.refresh(worlds)
	c.floatingIPs.refresh(worlds)
	c.namespaces = len(worlds) - 1
}

// current reports whether all caches show the present.
func (c *controller) current(worlds []world) bool {
	last := len(worlds) - 1
	return c.services.shows == last && c.pools.shows == last && c.floatingIPs.shows == last && c.namespaces == last
}

func (c *controller) sees(worlds []world) world {
	w := world{
		Services: c.services.view(worlds), Pools: c.pools.view(worlds), FloatingIPs: c.floatingIPs.view(worlds),
		Namespaces: worlds[c.namespaces].Namespaces, Reserved: worlds[c.services.shows].Reserved,
	}
	for by, o := range c.open {
		if at := w.version(by); at < 0 || at > o.at {
			delete(c.open, by) // what landed shows
			continue
		}
		w.Claims = append(w.Claims, lb.Claim{Key: by.Key, FloatingIP: by.isFloating, Addresses: o.addresses})
	}
	slices.SortFunc(w.Claims, func(a, b lb.Claim) int {
		if a.FloatingIP != b.FloatingIP {
			return map[bool]int{true: -1, false: 1}[a.FloatingIP]
		}
		return a.Key.Compare(b.Key)
	})
	return w
}

// version returns the version of an object, less than 0 if there is none.
func (w *world) version(of objectID) int {
	if f := get(w.FloatingIPs, of.Key); of.isFloating && f != nil {
		return f.version
	}
	if s := get(w.Services, of.Key); !of.isFloating && s != nil {
		return s.version
	}
	return -1
}

// unanswered records a write without an answer that gives an object these addresses, which it has besides the others.
func (c *controller) unanswered(by objectID, at int, has, gets []netip.Addr) {
	o := openWrite{at: at}
	if before := c.open[by]; before.at == at {
		o.addresses = before.addresses
	}
	for _, addr := range gets {
		if !slices.Contains(has, addr) && !slices.Contains(o.addresses, addr) {
			o.addresses = append(slices.Clip(o.addresses), addr)
		}
	}
	if len(o.addresses) > 0 {
		c.open[by] = o
	}
}

// settle reads the objects of writes without an answer past the watches.
func (c *controller) settle(worlds []world) {
	last := &worlds[len(worlds)-1]
	for by := range c.open {
		if s := get(last.Services, by.Key); !by.isFloating && s != nil {
			c.services.wrote(*s)
		}
		if f := get(last.FloatingIPs, by.Key); by.isFloating && f != nil {
			c.floatingIPs.wrote(*f)
		}
	}
	clear(c.open)
}
