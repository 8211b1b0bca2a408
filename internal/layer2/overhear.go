package layer2

import (
	"github.com/holdfast-lb/holdfast/internal/link"
)

// attach has an ear for each family on the links that may announce, where there is
// another speaker to hear.
func (a *audit) attach(now moment) {
	wanted := make(map[int]link.Link)
	a.own = make(map[link.MAC]bool)
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
	for index, ears := range a.ears {
		if l, still := wanted[index]; !still || ears[0].link.MAC != l.MAC || ears[0].failed || ears[1].failed {
			a.detach(index)
		}
	}
	for index, l := range wanted {
		if _, attached := a.ears[index]; !attached {
			a.open(l)
		}
	}
}

func (a *audit) open(l link.Link) {
	var ears [families]*ear
	for i, proto := range a.r.protocols {
		var err error
		if ears[i], err = a.r.openEar(l, proto, proto.claims); err != nil && !a.refused[l.Name] {
			a.refused[l.Name] = true
			a.r.log.Warn("cannot listen to other speakers", "link", l.Name, "err", err)
		}
	}
	a.ears[l.Index] = ears
}

// detach stops listening on a link: who was heard there is not any more.
func (a *audit) detach(index int) {
	for i, e := range a.ears[index] {
		e.close()
		for mac, h := range a.shared[i] {
			if h.index == index {
				delete(a.shared[i], mac)
			}
		}
	}
	delete(a.ears, index)
}

// listen hears what has arrived, and reports whether any was lost.
func (a *audit) listen(now moment) (lost bool) {
	for index, ears := range a.ears {
		for _, e := range ears {
			e.hear(func(frame []byte) {
				m, out := e.proto.parse(frame, e.link.MAC)
				// In the stead of another an address may be told, but not announced.
				if out == answered && m.claimed.IsValid() && m.mac == link.MAC(frame[offSource:offEtherType]) {
					a.claim(index, m.claimed, m.mac, now)
				}
			})
			lost = e.lost() || lost
		}
	}
	return lost
}

func (a *audit) close() {
	for index := range a.ears {
		a.detach(index)
	}
}
