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
	// lookInterval is the minimum time between two looks at the SpeakerStates, which change often. Each pool and each
	// BGPPeer that changes is sent to every node: a machine that constantly changes its MAC, or a dead router, which a
	// thousand speakers report one after another, must not cause constant writes.
	lookInterval = 5 * time.Second
	// staleTime is when a speaker's report expires: speakers write every ten minutes, and a speaker that was removed
	// from its node does not withdraw its last report.
	staleTime = 25 * time.Minute
)

// speakers is what the speakers report, as the last look found it. Between two looks nothing of it changes.
type speakers struct {
	reports reports
	// conflicts are our addresses that foreign machines claim, and sessions those of all BGPPeers; nil before the first
	// look.
	conflicts map[netip.Addr]conflict
	sessions  *sessions
	// networks are what the networks of the nodes use themselves: the same slice as long as they are the same.
	networks   []config.NetworkAddress
	unfiltered unfiltered
	proxied    proxied
}

// look reads all SpeakerStates, at a time by our clock and by that of the API server. Those of nodes that Kubernetes
// does not call ready may be old.
func (s *speakers) look(now, apiNow time.Time, nodes []*corev1.Node, states []*v1beta1.SpeakerState) {
	notReady := nodelifecycle.NotReady(nodes)
	s.reports = s.reports.read(now, apiNow, states)
	s.conflicts = s.reports.conflicts(now, states, notReady)
	s.sessions = s.reports.sessions(now, states, notReady)
	if networks := config.NetworkAddresses(states); !slices.Equal(networks, s.networks) {
		s.networks = networks
	}
	open := s.reports.open(now, nodes, states, notReady)
	s.unfiltered.look(now, open)
	s.proxied.look(now, s.reports, states, notReady, open)
}

// reports are the times of the speakers' last reports, by their nodes.
type reports map[string]lastReport

// lastReport is the time of a speaker's last report, by its own clock and by ours.
type lastReport struct {
	observed time.Time
	at       time.Time
}

// read returns the times as of now. A report that is read for the first time is no fresher than it was where the API
// server got it, whatever the clocks of the speaker and of this machine say: to a new leader all are new. If that is
// not known it was written just now.
func (r reports) read(now, apiNow time.Time, states []*v1beta1.SpeakerState) reports {
	out := make(reports, len(states))
	for _, s := range states {
		last, known := r[s.Name]
		if o := s.Status.Observed; o != nil && !o.IsZero() && (!known || !o.Time.Equal(last.observed)) {
			last = lastReport{o.Time, now.Add(-reportAge(apiNow, s))}
		}
		out[s.Name] = last
	}
	return out
}

// reportAge returns for how long the API server has had a speaker's last report, 0 if that is not known.
func reportAge(apiNow time.Time, s *v1beta1.SpeakerState) time.Duration {
	at := k8s.ReportTime(s)
	if at.IsZero() || apiNow.IsZero() {
		return 0
	}
	return max(0, apiNow.Sub(at))
}

// stale reports whether the last report of a node's speaker has expired, or there was none.
func (r reports) stale(now time.Time, node string) bool { return now.Sub(r[node].at) >= staleTime }
