package main

import (
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/nodelifecycle"
)

// readStates reads what the speakers report, and reports whether an object is to say something else than before.
func (s *syncer) readStates(now time.Time) bool {
	nodes, states := s.cluster.Objects().Nodes, s.cluster.SpeakerStates()
	contested := s.conflicts.refresh()
	unfiltered := s.unfiltered.refresh(now, nodes, states)
	return s.sessions.refresh(now, states, nodelifecycle.NotReady(nodes)) || unfiltered || contested
}

// staleTime is when a speaker's report expires: speakers write every ten minutes, and a speaker that was removed from its
// node does not withdraw its last report.
const staleTime = 25 * time.Minute

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
