package layer2

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// keeper keeps ports with their schedules, and groups, consistent with the table and the links.
// It belongs to the goroutine of Run.
type keeper struct {
	r     *Responder
	ports map[int]*port
	// broken are links whose port failed, with the earliest time to reopen it.
	broken map[int]time.Time
	// complaints are the errors of opening sockets, by link index, until that works.
	complaints map[int]string
	// known are the links that have answered, by name, to tell a returning link from a new one.
	known map[string]*pace
	// synced is the table that schedules and groups reflect; nil after a change of ports.
	synced *table
	// linkless are the addresses that no link answers for.
	linkless map[netip.Addr]bool
	// filtered is the table that the kernel's filters were made for, and when; they pass frames about covers.
	filtered   *table
	filteredAt time.Time
	covers     [kinds]cover
	// conflicts are the statuses of addresses that foreign machines claimed.
	conflicts map[netip.Addr]*status
}

func newKeeper(r *Responder) *keeper {
	return &keeper{
		r: r, ports: make(map[int]*port),
		broken: make(map[int]time.Time), complaints: make(map[int]string), known: make(map[string]*pace),
		linkless: make(map[netip.Addr]bool), conflicts: make(map[netip.Addr]*status),
	}
}

// sync reads table and links and brings everything else in line.
func (k *keeper) sync() {
	t := k.r.table.Load()
	wanted := make(map[int]lb.Interface)
	links := k.r.config.Links()
	for _, l := range links {
		switch refused := k.complaints[l.Index] != ""; {
		// The others know that a node cannot announce on a link before it has to. What refuses stays wanted: who loses
		// its addresses for that must not forget why, and take them back.
		case l.Usable(), l.CanAnnounce() && (t.named[l.Name] > 0 || refused):
			wanted[l.Index] = l
		case l.CanAnnounce():
			delete(k.known, l.Name) // it works, but is not needed
		}
	}

	k.dropPorts(wanted)
	k.forgetConflicts(k.r.now())
	for index, l := range wanted {
		if p := k.ports[index]; p != nil {
			k.refresh(p, l)
		} else {
			k.open(l)
		}
	}

	k.refuse(links)
	now := k.r.now()
	if k.synced == nil || k.filtered != t && (now.Sub(k.filteredAt) >= checkInterval || !k.passes(t)) {
		k.filter(t, now)
	}

	if k.synced == t {
		return
	}

	moved := k.synced == nil
	ports := maps.Clone(k.ports)
	k.r.ports.Store(&ports)
	k.r.followed.Store(t) // after the ports: State relies on this order
	k.follow(t)
	if k.synced = t; moved || len(k.linkless) > 0 {
		k.r.changed()
	}
}

// dropPorts closes failed ports and ports of links that are no longer needed.
func (k *keeper) dropPorts(wanted map[int]lb.Interface) {
	for index, p := range k.ports {
		_, want := wanted[index]
		if want && !p.failed.Load() {
			continue
		}

		if want {
			// Wait before retrying a link whose sockets fail at once.
			k.broken[index] = p.opened.Add(checkInterval / 2)
		}

		p.close()
		delete(k.ports, index)
		k.synced = nil
		k.r.config.Log.Info("link no longer answers", "link", p.link.Load().Name, "failed", want)
	}

	// A link that was gone is opened as soon as it is back.
	maps.DeleteFunc(k.broken, func(index int, _ time.Time) bool { _, want := wanted[index]; return !want })
}

// refresh adopts changes of a link in use.
func (k *keeper) refresh(p *port, l lb.Interface) {
	old := p.link.Load()
	if reflect.DeepEqual(old.Interface, l) {
		return
	}

	p.setLink(l)
	if old.Name != l.Name {
		k.r.config.Log.Info("link has a new name", "link", l.Name, "was", old.Name)
		k.r.counts.repairs[repairLink].Add(1)
		k.known[l.Name] = k.known[old.Name]
		delete(k.known, old.Name)
	}

	if old.MAC != l.MAC {
		k.r.config.Log.Info("link has a new MAC", "link", l.Name, "mac", l.MAC, "was", old.MAC)
		k.r.counts.repairs[repairMAC].Add(1)
		p.schedule = newSchedule(k.r.config.Timers, p.schedule.pace, k.r.between)
	}

	if old.Member != l.Member && l.Member != 0 {
		// The switch learns the port of our MAC from any frame.
		p.schedule.restartOne(k.r.now())
	}

	k.synced = nil
}

func (k *keeper) open(l lb.Interface) {
	retryAt, broken := k.broken[l.Index]
	if broken && k.r.now().Before(retryAt) {
		return
	}

	known := cmp.Or(k.known[l.Name], &pace{})
	p, err := k.r.openPort(l, known)
	if k.opened(l, err); err != nil {
		return
	}

	delete(k.broken, l.Index)
	switch {
	case broken:
		k.r.counts.repairs[repairSocket].Add(1)
	case k.known[l.Name] != nil:
		k.r.counts.repairs[repairLink].Add(1)
	}

	k.known[l.Name] = known
	k.ports[l.Index] = p
	k.synced = nil
	k.r.config.Log.Info("link answers", "link", l.Name, "mac", l.MAC)
}

// passes reports whether the kernel's filters pass frames about all addresses of a table.
func (k *keeper) passes(t *table) bool {
	all := true
	check := func(a netip.Addr) { all = all && k.covers[number(lb.FamilyOf(a))].has(a) }
	k.filtered.entries.Changes(t.entries, func(a netip.Addr, _, _ *entry, _, _ bool) { check(a) })
	k.filtered.of.Owners.Changes(t.of.Owners, func(a netip.Addr, _, _ string, _, _ bool) { check(a) })
	return all
}

// filter sets the kernel's filters for the addresses of all nodes, before any of them is announced.
func (k *keeper) filter(t *table, now time.Time) {
	k.filtered, k.filteredAt = t, now
	k.covers = coversOf(t.of.Owners.Keys(), t.entries.Keys())
	for i, proto := range k.r.protocols {
		program := proto.filter(k.covers[i])
		for _, p := range k.ports {
			if err := p.wires[i].SetFilter(program); err != nil && !p.failed.Swap(true) {
				// The old filter stays in force; a new socket gets the right one.
				k.r.config.Log.Error("link cannot filter", "link", p.link.Load().Name, "error", err)
				k.r.Kick()
			}
		}
	}
}

// follow updates schedules and groups from the table: of all addresses after a change of ports, else of those that
// changed.
func (k *keeper) follow(t *table) {
	before, regroup := k.synced, false
	if before == nil {
		before, regroup = &table{}, true
		for _, p := range k.ports {
			for it := range p.schedule.items {
				if !t.entries.Has(it.addr) {
					p.schedule.drop(it.addr)
				}
			}
		}

		clear(k.linkless)
	}

	before.entries.Changes(t.entries, func(addr netip.Addr, _, _ *entry, _, _ bool) {
		k.reschedule(t, addr, k.r.now())
		regroup = regroup || addr.Is6()
	})

	before.of.Owners.Changes(t.of.Owners, func(addr netip.Addr, _, _ string, had, has bool) {
		regroup = regroup ||
			addr.Is6() &&
				had != has
	})

	if regroup {
		k.r.groups.set(k.memberships(t))
	}
}

// maxOthers bounds the groups that a link joins to hear who asks for others' addresses.
const maxOthers = 64

// memberships returns the groups of the IPv6 addresses on their links, and of addresses of other nodes on all links:
// without these a card or a switch passes no question for them.
func (k *keeper) memberships(t *table) map[membership]bool {
	groups, others := make(map[membership]bool), 0
	join := func(addr netip.Addr, index int) { groups[membership{index, solicitedNode(addr).addr}] = true }
	for index, p := range k.ports {
		for addr := range t.entries.Keys() {
			if addr.Is6() && t.on(addr, &p.link.Load().Interface) != nil {
				join(addr, index)
			}
		}
	}

	for addr := range t.of.Owners.Keys() {
		if others == maxOthers {
			break
		}

		if !addr.Is6() || !t.elsewhere(addr) {
			continue
		}

		others++
		for index := range k.ports {
			join(addr, index)
		}
	}

	return groups
}

// reschedule updates the schedules for one address of a table.
func (k *keeper) reschedule(t *table, addr netip.Addr, now time.Time) {
	linked := !t.entries.Has(addr)
	for _, p := range k.ports {
		l := p.link.Load()
		if e := t.on(addr, &l.Interface); e != nil {
			linked = true
			p.schedule.put(addr, job{e.on(l.Name), e.status}, now)
		} else {
			p.schedule.drop(addr)
		}
	}

	if delete(k.linkless, addr); !linked {
		k.linkless[addr] = true
	}
}

func (k *keeper) close() {
	for _, p := range k.ports {
		p.close()
	}
	k.r.ports.Store(&map[int]*port{})
}
