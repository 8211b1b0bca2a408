package layer2

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// portKeeper keeps ports with their schedules, and groups, consistent with the table and the links.
// It belongs to the goroutine of Run.
type portKeeper struct {
	r     *Responder
	ports map[int]*linkPort
	// retryTimes are the earliest times to reopen the links whose port failed, by link index.
	retryTimes map[int]time.Time
	// openErrors are the errors of opening sockets, by link index, until that works.
	openErrors map[int]string
	// limits are the rate limits of the links that had a port, by name. They tell a returning link from a new one.
	limits map[string]*rateLimit
	// applied is the table that schedules and groups reflect, nil after a change of ports.
	applied *addressTable
	// checksEarly reports whether this node might have to yield when the table was applied: see contestWait.
	checksEarly bool
	// withoutLink are the addresses that no link answers for.
	withoutLink map[netip.Addr]bool
	filters     filters
	// conflicts are the statuses of addresses that foreign machines claimed.
	conflicts map[netip.Addr]*status
}

// filters are the kernel's filters of all ports.
type filters struct {
	// table is the table that they were made of, at setAt.
	table *addressTable
	setAt time.Time
	// covers are the addresses whose frames they pass, by protocol.
	covers [protocolCount]addressCover
}

// newPortKeeper returns a portKeeper without ports.
func newPortKeeper(r *Responder) *portKeeper {
	return &portKeeper{
		r:           r,
		ports:       make(map[int]*linkPort),
		retryTimes:  make(map[int]time.Time),
		openErrors:  make(map[int]string),
		limits:      make(map[string]*rateLimit),
		withoutLink: make(map[netip.Addr]bool),
		conflicts:   make(map[netip.Addr]*status),
	}
}

// sync reads table and links, and adapts ports, filters, schedules and groups.
func (k *portKeeper) sync() {
	t := k.r.table.Load()
	links := k.r.config.Links()
	wanted := k.wantedLinks(t, links)

	k.dropPorts(wanted)
	k.expireConflicts(k.r.system.clock())
	for index, l := range wanted {
		p := k.ports[index]
		if p != nil {
			k.refresh(p, l)
		} else {
			k.open(l)
		}
	}

	k.publishRefusals(links)
	at := k.r.system.clock()
	if k.needsFilters(t, at) {
		k.setFilters(t, at)
	}

	if k.applied == t {
		return
	}

	hasNewPorts := k.applied == nil
	ports := maps.Clone(k.ports)
	k.r.published.ports.Store(&ports)
	k.r.published.table.Store(t) // after the ports: State relies on this order
	k.updateSchedules(t)
	k.applied = t
	if hasNewPorts || len(k.withoutLink) > 0 {
		k.r.markChanged()
	}
}

// wantedLinks returns the links that need a port, by index: all usable links, so that the other nodes know that a node
// cannot announce on a link before it has to; and named links that can announce. A link that refused stays wanted:
// otherwise the node would lose its addresses for the refusal, forget it, win them back and fail again.
func (k *portKeeper) wantedLinks(t *addressTable, links []lb.Interface) map[int]lb.Interface {
	wanted := make(map[int]lb.Interface)
	for _, l := range links {
		hasRefused := k.openErrors[l.Index] != ""
		isNamed := t.linkUses[l.Name] > 0
		switch {
		case l.Usable():
			wanted[l.Index] = l
		case !l.CanAnnounce():
		case isNamed || hasRefused:
			wanted[l.Index] = l
		default:
			delete(k.limits, l.Name) // it works, but is not needed
		}
	}

	return wanted
}

// dropPorts closes failed ports and ports of links that are no longer needed.
func (k *portKeeper) dropPorts(wanted map[int]lb.Interface) {
	for index, p := range k.ports {
		_, isWanted := wanted[index]
		if isWanted && !p.hasFailed.Load() {
			continue
		}

		if isWanted {
			// Wait before retrying a link whose sockets fail at once.
			k.retryTimes[index] = p.openedAt.Add(checkInterval / 2)
		}

		p.close()
		delete(k.ports, index)
		k.applied = nil
		k.r.config.Log.Info("link no longer answers", "link", p.link.Load().Name, "failed", isWanted)
	}

	// A link that was gone is opened as soon as it is back.
	maps.DeleteFunc(k.retryTimes, func(index int, _ time.Time) bool {
		_, isWanted := wanted[index]
		return !isWanted
	})
}

// refresh adopts changes of a link in use.
func (k *portKeeper) refresh(p *linkPort, l lb.Interface) {
	old := p.link.Load()
	if reflect.DeepEqual(old.Interface, l) {
		return
	}

	p.setLink(l)
	if old.Name != l.Name {
		k.r.config.Log.Info("link has a new name", "link", l.Name, "was", old.Name)
		k.r.counters.repairs[repairLink].Add(1)
		k.limits[l.Name] = k.limits[old.Name]
		delete(k.limits, old.Name)
	}

	if old.MAC != l.MAC {
		k.r.config.Log.Info(
			"link has a new MAC",
			"link", l.Name,
			"mac", l.MAC,
			"was", old.MAC,
		)
		k.r.counters.repairs[repairMAC].Add(1)
		p.schedule = newSchedule(k.r.config.Timers, p.schedule.limit, k.r.system.random)
	}

	if old.Member != l.Member && l.Member != 0 {
		// The switch learns the port of our MAC from any frame.
		p.schedule.repeatOneAgain(k.r.system.clock())
	}

	k.applied = nil
}

// open opens a port for a link, unless its retry time is still to come.
func (k *portKeeper) open(l lb.Interface) {
	retryAt, isRetry := k.retryTimes[l.Index]
	if isRetry && k.r.system.clock().Before(retryAt) {
		return
	}

	former := k.limits[l.Name]
	limit := cmp.Or(former, &rateLimit{})
	p, err := k.r.openPort(l, limit)
	k.recordOpening(l, err)
	if err != nil {
		return
	}

	delete(k.retryTimes, l.Index)
	switch {
	case isRetry:
		k.r.counters.repairs[repairSocket].Add(1)
	case former != nil:
		k.r.counters.repairs[repairLink].Add(1)
	}

	k.limits[l.Name] = limit
	k.ports[l.Index] = p
	k.applied = nil
	k.r.config.Log.Info("link answers", "link", l.Name, "mac", l.MAC)
}

// needsFilters reports whether the kernel's filters must be set for a table: at once if they do not pass frames about
// all of its addresses or ports have changed, else not more often than every checkInterval.
func (k *portKeeper) needsFilters(t *addressTable, at time.Time) bool {
	if k.applied == nil {
		return true
	}

	if k.filters.table == t {
		return false
	}

	return at.Sub(k.filters.setAt) >= checkInterval || !k.filters.cover(t)
}

// cover reports whether the filters pass frames about all addresses of a table.
func (f *filters) cover(t *addressTable) bool {
	coversAll := true
	check := func(a netip.Addr) {
		coversAll = coversAll && f.covers[familyIndex(lb.FamilyOf(a))].has(a)
	}

	f.table.entries.Changes(t.entries, func(a netip.Addr, _, _ *tableEntry, _, _ bool) {
		check(a)
	})

	f.table.desired.Owners.Changes(t.desired.Owners, func(a netip.Addr, _, _ string, _, _ bool) {
		check(a)
	})

	return coversAll
}

// setFilters sets the kernel's filters for the addresses of all nodes, before any of them is announced.
func (k *portKeeper) setFilters(t *addressTable, at time.Time) {
	k.filters = filters{
		table:  t,
		setAt:  at,
		covers: coversOf(t.desired.Owners.Keys(), t.entries.Keys()),
	}
	for i, proto := range k.r.protocols {
		program := proto.filter(k.filters.covers[i])
		for _, p := range k.ports {
			err := p.conns[i].SetFilter(program)
			if err != nil {
				k.failFilter(p, err)
			}
		}
	}
}

// failFilter makes Run open new sockets on a link whose filter cannot be set. The old filter stays in force until then.
func (k *portKeeper) failFilter(p *linkPort, err error) {
	hasFailedBefore := p.hasFailed.Swap(true)
	if !hasFailedBefore {
		k.r.config.Log.Error("link cannot filter", "link", p.link.Load().Name, "error", err)
		k.r.Kick()
	}
}

// updateSchedules updates schedules and groups from a table: for all addresses after a change of ports, else for the
// addresses that changed.
func (k *portKeeper) updateSchedules(t *addressTable) {
	before := k.applied
	k.checksEarly = k.r.mayYield()
	hasNewPorts := before == nil
	if hasNewPorts {
		before = &addressTable{}
		k.removeUnset(t)
		clear(k.withoutLink)
	}

	hasNewGroups := hasNewPorts
	before.entries.Changes(t.entries, func(addr netip.Addr, _, _ *tableEntry, _, _ bool) {
		k.reschedule(t, addr, k.r.system.clock())
		if addr.Is6() {
			hasNewGroups = true
		}
	})

	before.desired.Owners.Changes(t.desired.Owners, func(addr netip.Addr, _, _ string, existed, exists bool) {
		if addr.Is6() && existed != exists {
			hasNewGroups = true
		}
	})

	if hasNewGroups {
		k.r.groups.set(k.memberships(t))
	}
}

// removeUnset removes the addresses from the schedules that a table does not have.
func (k *portKeeper) removeUnset(t *addressTable) {
	for _, p := range k.ports {
		for it := range p.schedule.items {
			if !t.entries.Has(it.addr) {
				p.schedule.remove(it.addr)
			}
		}
	}
}

// maxOthers bounds the groups that a link joins to hear questions for addresses of other nodes.
const maxOthers = 64

// memberships returns the groups of the IPv6 addresses on their links, and of addresses of other nodes on all links:
// without these a card or a switch passes no question for them.
func (k *portKeeper) memberships(t *addressTable) map[groupMembership]bool {
	groups := make(map[groupMembership]bool)
	join := func(addr netip.Addr, index int) {
		group := solicitedNode(addr).addr
		groups[groupMembership{index, group}] = true
	}

	for index, p := range k.ports {
		l := p.link.Load()
		for addr := range t.entries.Keys() {
			if addr.Is6() && t.entryOn(addr, &l.Interface) != nil {
				join(addr, index)
			}
		}
	}

	others := 0
	for addr := range t.desired.Owners.Keys() {
		if others == maxOthers {
			break
		}

		if !addr.Is6() || !t.isElsewhere(addr) {
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
func (k *portKeeper) reschedule(t *addressTable, addr netip.Addr, at time.Time) {
	hasLink := false
	for _, p := range k.ports {
		l := p.link.Load()
		e := t.entryOn(addr, &l.Interface)
		if e == nil {
			p.schedule.remove(addr)
			continue
		}

		hasLink = true
		j := job{phase: e.phaseOn(l.Name), status: e.status}
		hasStarted := p.schedule.setJob(addr, j, at)
		if hasStarted && k.checksEarly {
			p.schedule.checkDuplicate(addr, at.Add(contestWait))
		}
	}

	delete(k.withoutLink, addr)
	if !hasLink && t.entries.Has(addr) {
		k.withoutLink[addr] = true
	}
}

// close closes all ports.
func (k *portKeeper) close() {
	for _, p := range k.ports {
		p.close()
	}

	k.r.published.ports.Store(&map[int]*linkPort{})
}
