package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nodelifecycle"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// writeStates writes the condition Valid of SpeakerStates with fields that cannot be read. What such a field
// says of other nodes does not count.
func writeStates(ctx context.Context, cluster *k8s.Cluster, log *slog.Logger) error {
	_, err := k8s.Each(ctx, log, cluster.SpeakerStates(), func(ctx context.Context, o *v1beta1.SpeakerState) error {
		problems := config.CheckSpeakerState(o)
		if len(problems) == 0 && meta.FindStatusCondition(o.Status.Conditions, v1beta1.ConditionValid) == nil {
			return nil // the rule; a condition on each would be a write for each node
		}
		condition := valid(lb.Object{Kind: config.KindSpeakerState, Name: o.Name}, problems)
		wrote, err := cluster.UpdateSpeakerState(ctx, o, []metav1.Condition{condition})
		if wrote && len(problems) > 0 {
			log.Warn("speakerstate", "member", o.Name, "reason", condition.Reason, "message", condition.Message)
		}
		return err
	})
	return err
}

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
		if o := s.Status.Observed; o != nil && (!known || !o.Time.Equal(last.observed)) {
			last = lastReport{o.Time, now}
		}
		out[s.Name] = last
	}
	return out
}

// stale reports whether the last report of a node's speaker has expired, or there was none.
func (r reports) stale(now time.Time, node string) bool { return now.Sub(r[node].at) >= staleTime }
