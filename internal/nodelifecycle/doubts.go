package nodelifecycle

import (
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
)

// Doubts tell a controller that does not lead whether the leader's node is worth waiting for. They declare nobody
// dead, so they read no Lease of a node. The zero Doubts have seen nothing.
type Doubts struct{ tracker tracker }

// Missed takes what all speakers have written, as it reads now, and reports whether most of so many speakers miss a
// node, each within the last minute and since that node's own speaker last wrote. Ask often: what changes between two
// looks happened just now, by whatever clock it was written.
func (d *Doubts) Missed(now time.Time, states []*v1beta1.SpeakerState, speakers int, node string) bool {
	reports := make([]report, 0, len(states))
	for _, o := range states {
		reports = append(reports, reportOf(o))
	}
	d.tracker.observeReports(now, reports)
	s := state{
		now: now, speakers: speakers, suspicions: d.tracker.suspicions(),
		lastSeen: map[string]time.Time{node: d.tracker.wrote(node)},
	}
	return slices.Contains(s.suspects(), node)
}
