package layer2

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// attach opens a tap for each family on the links that may announce, if there are
// other speakers to hear.
func (a *audit) attach(now moment) {
	wanted := make(map[int]lb.Interface)
	a.own = make(map[lb.MAC]bool)
	for _, l := range a.r.links() {
		a.own[l.MAC] = true
		if l.Usable() || a.table.named[l.Name] && l.CanAnnounce() {
			wanted[l.Index] = l
		}
	}
	alone := true
	for mac := range a.table.speakers {
		alone = alone && a.own[mac]
	}
	if alone || len(a.records) == 0 {
		clear(wanted)
	}
	for index, taps := range a.taps {
		if l, still := wanted[index]; !still || taps[0].link.MAC != l.MAC || taps[0].failed || taps[1].failed {
			a.detach(index)
		}
	}
	for index, l := range wanted {
		if _, attached := a.taps[index]; !attached {
			a.open(l)
		}
	}
	a.join()
}

// maxOthers bounds the groups that a link joins to hear who asks for others' addresses.
const maxOthers = 64

// join joins the groups of addresses of other nodes, without which a card or a switch passes no question for them.
func (a *audit) join() {
	groups, addrs := make(map[membership]bool), a.asked[number(lb.IPv6)]
	for index := range a.taps {
		for _, addr := range addrs[:min(len(addrs), maxOthers)] {
			if group, ok := solicitedNode(addr); ok {
				groups[membership{index, group}] = true
			}
		}
	}
	if !maps.Equal(groups, a.joined) {
		a.joined = groups
		a.r.groups.set(ofOthers, groups)
	}
}

func (a *audit) open(l lb.Interface) {
	var taps [families]*tap
	for i, proto := range a.r.protocols[:families] {
		var err error
		if taps[i], err = a.r.openTap(l, proto, proto.heard(a.asked[i])); err != nil && !a.refused[l.Name] {
			a.refused[l.Name] = true
			a.r.log.Warn("cannot listen to other speakers", "link", l.Name, "error", err)
		}
	}
	a.taps[l.Index] = taps
}

// detach stops listening on a link and forgets the machines heard there.
func (a *audit) detach(index int) {
	for i, e := range a.taps[index] {
		e.close()
		for mac, h := range a.shared[i] {
			if h.index == index {
				delete(a.shared[i], mac)
			}
		}
	}
	delete(a.taps, index)
}

// listen handles the frames that have arrived, and reports whether any were lost.
func (a *audit) listen(now moment) (lost bool) {
	for _, taps := range a.taps {
		for _, e := range taps {
			e.receive(func(frame []byte) { a.heard(e, frame, now) })
			lost = e.lost() > 0 || lost
		}
	}
	return lost
}

// heard handles a frame. Who asks for an address of another node is a foreign machine; ports hear who asks for our own.
func (a *audit) heard(e *tap, frame []byte, now moment) {
	m, out := e.proto.parse(frame, e.link.MAC)
	switch {
	case out != answered:
	case m.isQuestion():
		if rec := a.records[m.target]; rec != nil && rec.status == nil {
			a.r.asker(a.table, a.r.foreignByLink.on(e.link.Name), m, frame)
		}
	// A stand-in answers for the owner, but must not announce.
	case m.claimed.IsValid() && m.mac == lb.MAC(frame[offSource:offEtherType]):
		a.claim(e.link.Index, m.claimed, m.mac, now)
	}
}

// listenFor has the taps pass questions for the addresses of other nodes.
func (a *audit) listenFor() {
	a.asked = [families][]netip.Addr{}
	for addr, rec := range a.records {
		if n := number(lb.FamilyOf(addr)); rec.status == nil {
			a.asked[n] = append(a.asked[n], addr)
		}
	}
	for n, addrs := range a.asked {
		slices.SortFunc(addrs, netip.Addr.Compare)
		for _, taps := range a.taps {
			if e := taps[n]; !e.failed {
				e.failed = e.SetFilter(e.proto.heard(addrs)) != nil
			}
		}
	}
}

func (a *audit) close() {
	for index := range a.taps {
		a.detach(index)
	}
}
