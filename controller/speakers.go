package main

import (
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/nodelifecycle"
	corev1 "k8s.io/api/core/v1"
)

const (
	// observeInterval is the minimum time between two reads of the SpeakerStates, which change often. Each pool and
	// each BGPPeer that changes is sent to every node. A machine that constantly changes its MAC, or a dead router that
	// a thousand speakers report one after another, must not cause constant writes.
	observeInterval = 5 * time.Second
	// staleTime is the time after which a speaker's report expires. Speakers write every ten minutes, and a speaker
	// that was removed from its node does not withdraw its last report.
	staleTime = 25 * time.Minute
)

// speakerView is what the speakers report, as of the last read of the SpeakerStates.
type speakerView struct {
	reports reportTimes
	// claims are our addresses that foreign machines claim; nil before the first read.
	claims map[netip.Addr]foreignClaim
	// sessions are the sessions of all BGPPeers; nil before the first read.
	sessions *sessionView
	// networks are the addresses that the nodes' networks use themselves. The slice stays the same as long as its
	// content does.
	networks   []config.NetworkAddress
	unfiltered unfilteredNodes
	proxied    proxyView
	closed     closedView
}

// observe reads all SpeakerStates. at and apiTime are the time by our clock and by the API server's. The states of
// nodes that Kubernetes does not call ready may be old.
func (s *speakerView) observe(
	at, apiTime time.Time,
	nodes []*corev1.Node,
	states []*v1beta1.SpeakerState,
) {
	notReady := nodelifecycle.NotReady(nodes)
	s.reports = s.reports.update(at, apiTime, states)
	s.claims = s.reports.foreignClaims(at, states, notReady)
	s.sessions = s.reports.sessionView(at, states, notReady)

	networks := config.NetworkAddresses(states)
	if !slices.Equal(networks, s.networks) {
		s.networks = networks
	}

	unfiltered := s.reports.unfilteredNodes(at, nodes, states, notReady)
	s.unfiltered.observe(at, unfiltered)
	s.proxied.observe(at, s.reports, states, notReady, unfiltered)
	s.closed.observe(at, s.reports, states, notReady)
}

// reportTimes has the times of the speakers' last reports, by their nodes.
type reportTimes map[string]lastReport

// lastReport is the time of a speaker's last report.
type lastReport struct {
	// observed is the time by the speaker's clock.
	observed time.Time
	// at is the time by our clock.
	at time.Time
}

// update returns the times after a read of the SpeakerStates. To a new leader all reports are new. A report that is
// read for the first time is therefore dated by the age that it has for the API server, whatever the clocks of the
// speaker and of this machine say. If that age is not known, it was written just now.
func (r reportTimes) update(at, apiTime time.Time, states []*v1beta1.SpeakerState) reportTimes {
	out := make(reportTimes, len(states))
	for _, s := range states {
		last, ok := r[s.Name]
		observed := s.Status.Observed
		isDated := observed != nil && !observed.IsZero()
		isNew := isDated && (!ok || !observed.Time.Equal(last.observed))
		if isNew {
			age := reportAge(apiTime, s)
			last = lastReport{observed: observed.Time, at: at.Add(-age)}
		}

		out[s.Name] = last
	}

	return out
}

// reportAge returns the time for which the API server has had a speaker's last report; 0 if that is not known.
func reportAge(apiTime time.Time, s *v1beta1.SpeakerState) time.Duration {
	at := k8s.ReportTime(s)
	if at.IsZero() || apiTime.IsZero() {
		return 0
	}
	return max(0, apiTime.Sub(at))
}

// isStale reports whether the last report of a node's speaker has expired, or there was none.
func (r reportTimes) isStale(at time.Time, node string) bool {
	return at.Sub(r[node].at) >= staleTime
}
