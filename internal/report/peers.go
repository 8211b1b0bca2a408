package report

import (
	"math"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// mostSaid bounds a sentence about a session: the router words a part of it.
	mostSaid = 512
	// mostCapabilities of at most mostNamed bytes each, and mostTime, are bounds of the schema.
	mostCapabilities = 16
	mostNamed        = 64
	mostTime         = math.MaxUint16
)

func up(s bgp.Session) bool { return s.State == bgp.Established }

// sessionStates returns the sessions as the SpeakerState has them.
func sessionStates(sessions []bgp.Session) (out []v1beta1.SessionState) {
	for _, s := range sessions[:min(len(sessions), mostListed)] {
		is := v1beta1.SessionState{Peer: s.Peer, State: v1beta1.SessionStateDown, LastError: lb.Line(s.LastError, mostSaid), BFD: s.BFD}
		if !s.Since.IsZero() {
			is.Since = new(metav1.NewTime(s.Since).Rfc3339Copy())
		}
		if up(s) {
			is.State, is.LastError, is.Withheld = v1beta1.SessionStateEstablished, "", lb.Line(s.Withheld, mostSaid)
			is.AdvertisedRoutes = int32(min(s.Advertised, math.MaxInt32))
			for _, name := range s.Capabilities[:min(len(s.Capabilities), mostCapabilities)] {
				is.Capabilities = append(is.Capabilities, lb.Line(name, mostNamed))
			}
			is.HoldSeconds, is.KeepaliveSeconds = int32(min(s.HoldTime, mostTime)), int32(min(s.Keepalive, mostTime))
		}
		out = append(out, is)
	}
	return out
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
