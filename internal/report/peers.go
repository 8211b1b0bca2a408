package report

import (
	"fmt"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// maxErrors bounds the Events on one session that stays down.
const maxErrors = 5

// reported is what Events reported of a session: that it is up, or the errors since it was last up.
type reported struct {
	up     bool
	errors []string
}

// reportPeers sends an Event on a BGPPeer when this node's session with it comes up, goes down, or stays down with an
// error that no Event reported yet.
func (r *Reporter) reportPeers(sessions []bgp.Session) {
	now := map[string]reported{}
	for _, s := range sessions {
		last := r.sessions[s.Peer]
		now[s.Peer] = last
		switch {
		case up(s) && last.up, !up(s) && s.LastError == "", !up(s) && !last.lacks(s.LastError):
			continue // no change, still connecting, or a known error
		case up(s):
			now[s.Peer] = reported{up: true}
		default:
			now[s.Peer] = reported{errors: append(last.errors, s.LastError)}
		}
		r.reportPeer(s)
	}
	r.sessions = now
}

// lacks reports whether an Event should report an error of a session that stays down.
func (r reported) lacks(err string) bool {
	return len(r.errors) < maxErrors && !slices.Contains(r.errors, err)
}

func (r *Reporter) reportPeer(s bgp.Session) {
	reason, message := lb.SessionDown, fmt.Sprintf("node %s: no session with %s: %s", r.node, s.Address, s.LastError)
	if up(s) {
		reason, message = lb.SessionEstablished, fmt.Sprintf("node %s: session with %s is established", r.node, s.Address)
	}
	r.cluster.Event(lb.Object{Kind: config.KindPeer, Name: s.Peer}, r.cluster.PeerUID(s.Peer), up(s), reason, message)
}

func up(s bgp.Session) bool { return s.State == bgp.Established }
