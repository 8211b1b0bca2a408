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

// reported is what Events reported of a session: that it is up and what it does not carry, or the errors since it was last up.
type reported struct {
	up       bool
	withheld string
	errors   []string
}

// after returns what Events have reported once they report a session as it is now, and whether that takes an Event:
// the session came up, went down, or stays down with an error that no Event reported yet.
func (r reported) after(s bgp.Session) (now reported, event bool) {
	switch {
	case up(s):
		return reported{up: true, withheld: s.Withheld}, !r.up || s.Withheld != r.withheld
	case s.LastError == "": // still connecting
		return r, false
	case len(r.errors) == maxErrors || slices.Contains(r.errors, s.LastError):
		return r, false
	}
	return reported{errors: append(slices.Clip(r.errors), s.LastError)}, true
}

// reportPeers sends the Events that are due on the BGPPeers of this node's sessions.
func (r *Reporter) reportPeers(sessions []bgp.Session) {
	now := map[string]reported{}
	for _, s := range sessions {
		var event bool
		if now[s.Peer], event = r.sessions[s.Peer].after(s); event {
			r.reportPeer(s)
		}
	}
	r.sessions = now
}

func (r *Reporter) reportPeer(s bgp.Session) {
	router := "a router" // of an unnumbered peer, not found yet
	if s.Address.IsValid() {
		router = s.Address.String()
	}
	reason, message := lb.SessionDown, fmt.Sprintf("node %s: no session with %s: %s", r.node, router, s.LastError)
	if up(s) {
		reason, message = lb.SessionEstablished, fmt.Sprintf("node %s: session with %s is established", r.node, router)
		if s.Withheld != "" {
			message += "; " + s.Withheld
		}
	}
	r.cluster.Event(lb.Object{Kind: config.KindPeer, Name: s.Peer}, r.cluster.PeerUID(s.Peer), up(s) && s.Withheld == "", reason, message)
}

func up(s bgp.Session) bool { return s.State == bgp.Established }
