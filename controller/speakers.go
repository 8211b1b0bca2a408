package main

import (
	"net/netip"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/nodelifecycle"
	corev1 "k8s.io/api/core/v1"
)

const (
	// lookInterval is the minimum time between two looks at the SpeakerStates, which change often. Each pool and each
	// BGPPeer that changes is sent to every node: a machine that constantly changes its MAC, or a dead router, which a
	// thousand speakers report one after another, must not cause constant writes.
	lookInterval = 5 * time.Second
	// staleTime is when a speaker's report expires: speakers write every ten minutes, and a speaker that was removed from its
	// node does not withdraw its last report.
	staleTime = 25 * time.Minute
)

// speakers is what the speakers report, as the last look found it. Between two looks nothing of it changes.
type speakers struct {
	reports reports
	// conflicts are our addresses that foreign machines claim, and sessions those of all BGPPeers; nil before the first look.
	conflicts  map[netip.Addr]conflict
	sessions   *sessions
	unfiltered unfiltered
	proxied    proxied
}

// look reads all SpeakerStates. Those of nodes that Kubernetes does not call ready may be old.
func (s *speakers) look(now time.Time, nodes []*corev1.Node, states []*v1beta1.SpeakerState) {
	notReady := nodelifecycle.NotReady(nodes)
	s.reports = s.reports.read(now, states)
	s.conflicts = s.reports.conflicts(now, states, notReady)
	s.sessions = s.reports.sessions(now, states, notReady)
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

// read returns the times as of now. What changed since the last read was written just now, whatever the speaker's clock says.
func (r reports) read(now time.Time, states []*v1beta1.SpeakerState) reports {
	out := make(reports, len(states))
	for _, s := range states {
		last, known := r[s.Name]
		if o := s.Status.Observed; o != nil && !o.IsZero() && (!known || !o.Time.Equal(last.observed)) {
			last = lastReport{o.Time, now}
		}
		out[s.Name] = last
	}
	return out
}

// stale reports whether the last report of a node's speaker has expired, or there was none.
func (r reports) stale(now time.Time, node string) bool { return now.Sub(r[node].at) >= staleTime }
