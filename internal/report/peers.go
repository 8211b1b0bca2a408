package report

import (
	"fmt"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// mostReasons bounds the Events on one session that stays down.
const mostReasons = 5

// told is what Events said of a session since it was last up.
type told struct {
	up      bool
	reasons []string
}

func (t told) news(reason string) bool {
	return len(t.reasons) < mostReasons && !slices.Contains(t.reasons, reason)
}

// reportPeers sends an Event on a BGPPeer when this node's session with it comes up,
// goes down, or stays down for a reason not said before.
func (r *Reporter) reportPeers(sessions []bgp.Session) {
	now := map[string]told{}
	for _, s := range sessions {
		before, known := r.sessions[s.Peer]
		now[s.Peer] = before
		fresh := !known || before.up != up(s) || !up(s) && before.news(s.LastError)
		if !fresh || !up(s) && s.LastError == "" {
			continue // nothing new, or still connecting
		}
		if up(s) {
			now[s.Peer] = told{up: true}
		} else {
			now[s.Peer] = told{reasons: append(before.reasons, s.LastError)}
		}
		r.reportPeer(s)
	}
	r.sessions = now
}

func (r *Reporter) reportPeer(s bgp.Session) {
	reason, message := lb.SessionDown, fmt.Sprintf("node %s: no session with %s: %s", r.node, s.Address, s.LastError)
	if up(s) {
		reason, message = lb.SessionEstablished, fmt.Sprintf("node %s: session with %s is established", r.node, s.Address)
	}
	r.cluster.Event(lb.Object{Kind: config.KindPeer, Name: s.Peer}, r.cluster.PeerUID(s.Peer), up(s), reason, message)
}

func up(s bgp.Session) bool { return s.State == bgp.Established }
