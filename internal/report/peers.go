package report

import (
	"math"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// mostSaid bounds a sentence about a session: the router words a part of it.
	mostSaid = 512
	// mostCapabilities and mostTime are bounds of the schema.
	mostCapabilities = 16
	mostTime         = math.MaxUint16
)

func up(s bgp.Session) bool { return s.State == bgp.Established }

// sessionStates returns the sessions as the SpeakerState has them, with the number of routes of each peer.
func sessionStates(sessions []bgp.Session, advertised map[string]int) (out []v1beta1.SessionState) {
	for _, s := range sessions[:min(len(sessions), mostListed)] {
		is := v1beta1.SessionState{Peer: s.Peer, State: v1beta1.SessionStateDown, LastError: lb.Line(s.LastError, mostSaid), BFD: s.BFD}
		if !s.Since.IsZero() {
			is.Since = new(metav1.NewTime(s.Since).Rfc3339Copy())
		}
		if up(s) {
			is.State, is.LastError, is.Withheld = v1beta1.SessionStateEstablished, "", lb.Line(s.Withheld, mostSaid)
			is.AdvertisedRoutes = int32(min(advertised[s.Peer], math.MaxInt32))
			is.Capabilities = s.Capabilities[:min(len(s.Capabilities), mostCapabilities)]
			is.HoldSeconds, is.KeepaliveSeconds = int32(min(s.HoldTime, mostTime)), int32(min(s.Keepalive, mostTime))
		}
		out = append(out, is)
	}
	return out
}

// count counts the advertised routes if a session came up or went down since the last count, and otherwise at intervals.
func (w *stateWriter) count(now time.Time, alive int) {
	var established []string
	for _, s := range w.bgp.States() {
		if up(s) {
			established = append(established, s.Peer)
		}
	}
	if slices.Equal(established, w.established) && now.Sub(w.counted) < detailsAfter(alive) {
		return
	}
	w.advertised, w.established, w.counted = map[string]int{}, established, now
	for _, s := range w.bgp.Sessions() {
		w.advertised[s.Peer] = s.Advertised
	}
}

// withoutDetails returns the state without what may wait longer to be written: numbers of routes, and the words of an error,
// though not that there is one.
func withoutDetails(s v1beta1.SpeakerStateStatus) v1beta1.SpeakerStateStatus {
	s.Sessions = slices.Clone(s.Sessions)
	for i := range s.Sessions {
		is := &s.Sessions[i]
		if is.AdvertisedRoutes = 0; is.LastError != "" {
			is.LastError = "an error"
		}
	}
	return s
}
