package nodelifecycle

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
)

const (
	// checkInterval is the time between runs while nodes are suspected.
	checkInterval = 200 * time.Millisecond
	// leasesAtOnce is the number of Leases to read per checkInterval: when a thousand nodes fall silent, the API server
	// is busy enough.
	leasesAtOnce = 10
	// lastWriteMargin is how much later than its last heartbeat a dead node may seem to have written. Speakers date the
	// beginning of its silence 0.3 s before they notice it, and no two watches are equally fast.
	lastWriteMargin = 500 * time.Millisecond
	// maxDelay is the longest time until the controller sees a write. If a write seems to take longer, a clock was set.
	maxDelay = 5 * time.Second
	// driftRate bounds the drift between two clocks: one part in 5000, which is 0.02 %.
	driftRate = 5000
)

// speakerReport is what one speaker wrote. All times are by that speaker's clock.
type speakerReport struct {
	// node is the speaker's node.
	node string
	// observed is the time of the write.
	observed time.Time
	// isCutOff reports whether the speaker hears half of the speakers or fewer.
	isCutOff bool
	// unreachable are the nodes that the speaker cannot reach, with the time at which each was last heard.
	unreachable map[string]time.Time
}

// tracker converts the times that speakers and kubelets wrote, each by its own clock, to the controller's clock. It
// compares the clocks whenever a speaker writes. Until the first write that it observes, it assumes that a speaker's
// clock is right.
//
// All times that it returns have the monotonic reading of the caller's clock, so that they stay right when that clock
// is set.
type tracker struct {
	speakers map[string]trackedSpeaker
	leases   map[string]nodeLease
	// lastRound is the time at which Leases were last read.
	lastRound time.Time
}

// trackedSpeaker is what is known of one speaker. wroteAt and lastHeard are times of its report, by the controller's
// clock.
type trackedSpeaker struct {
	speakerReport
	clock     remoteClock
	wroteAt   time.Time
	lastHeard map[string]time.Time
}

// nodeLease is what is known of a node's Lease.
type nodeLease struct {
	// readAt is the time of the last read.
	readAt time.Time
	// renewed is the renew time in the Lease, by the node's clock.
	renewed time.Time
	// renewedAt is the renew time by the controller's clock.
	renewedAt time.Time
	// hasMissed reports whether the kubelet missed a renewal.
	hasMissed bool
}

// remoteClock is the clock of a node, as far as it is known: it showed remote when the controller's clock showed local.
// Writes are seen late, by the time that the API server takes. The earliest observation is therefore the best one.
type remoteClock struct {
	remote time.Time
	local  time.Time
}

// isKnown reports whether the clock was compared with the controller's.
func (c remoteClock) isKnown() bool { return !c.local.IsZero() }

// observe takes into account that a write with the time written, by this clock, is seen at the time at for the first
// time.
func (c *remoteClock) observe(at, written time.Time) {
	local := at
	if c.isKnown() {
		drift := at.Sub(c.local) / driftRate
		earliest := c.local.Add(written.Sub(c.remote) + drift)
		delay := at.Sub(earliest)
		isPlausible := delay >= 0 && delay <= maxDelay
		if isPlausible {
			local = earliest
		}
	}

	*c = remoteClock{remote: written, local: local}
}

// toLocal converts a time of this clock to the controller's clock; the result is not after at. It returns the zero time
// for a time of an unknown clock that is in the future.
func (c remoteClock) toLocal(at, written time.Time) time.Time {
	if written.IsZero() {
		return time.Time{}
	}

	if !c.isKnown() {
		if written.After(at) {
			return time.Time{}
		}
		c = remoteClock{remote: at, local: at}
	}

	local := c.local.Add(written.Sub(c.remote))
	if local.Before(at) {
		return local
	}

	return at
}

// observeReports takes the reports of all speakers, as they read at the time at.
func (t *tracker) observeReports(at time.Time, reports []speakerReport) {
	if t.speakers == nil {
		t.speakers = make(map[string]trackedSpeaker, len(reports))
	}

	for _, r := range reports {
		s, isKnown := t.speakers[r.node]
		if !isKnown || !r.observed.Equal(s.observed) {
			t.speakers[r.node] = s.withReport(at, r, isKnown)
		}
	}

	if len(t.speakers) == len(reports) {
		return
	}

	maps.DeleteFunc(t.speakers, func(node string, _ trackedSpeaker) bool {
		isOfNode := func(r speakerReport) bool { return r.node == node }
		return !slices.ContainsFunc(reports, isOfNode)
	})
}

// withReport returns the speaker after it has written another report. isKnown reports whether it wrote one before.
//
// A node that stays in the report was not heard in between, so its time does not move. Otherwise a speaker that lies
// could date its suspicion after every sign of life.
func (s trackedSpeaker) withReport(at time.Time, r speakerReport, isKnown bool) trackedSpeaker {
	out := trackedSpeaker{
		speakerReport: r,
		clock:         s.clock,
		lastHeard:     make(map[string]time.Time, len(r.unreachable)),
	}
	if isKnown {
		out.clock.observe(at, r.observed)
	}

	out.wroteAt = out.clock.toLocal(at, r.observed)
	for node, since := range r.unreachable {
		before, wasUnreachable := s.unreachable[node]
		hasStayed := wasUnreachable && !since.Before(before)
		lastHeard := out.clock.toLocal(at, since)
		switch {
		case hasStayed && s.clock.isKnown():
			lastHeard = s.lastHeard[node]
		case lastHeard.IsZero():
			lastHeard = at.Add(-maxSuspicionAge)
		}

		out.lastHeard[node] = lastHeard
	}

	return out
}

// leasesDue returns the nodes whose Leases the caller should read, those with the longest wait first. It marks them as
// read, and drops what is known of all other nodes.
func (t *tracker) leasesDue(at time.Time, nodes []string) []string {
	maps.DeleteFunc(t.leases, func(node string, _ nodeLease) bool {
		return !slices.Contains(nodes, node)
	})
	if at.Sub(t.lastRound) < checkInterval || len(nodes) == 0 {
		return nil
	}

	t.lastRound = at
	if t.leases == nil {
		t.leases = map[string]nodeLease{}
	}

	byWait := func(a, b string) int {
		return t.leases[a].readAt.Compare(t.leases[b].readAt)
	}
	due := slices.SortedStableFunc(slices.Values(nodes), byWait)
	due = due[:min(len(due), leasesAtOnce)]
	for _, node := range due {
		l := t.leases[node]
		l.readAt = at
		t.leases[node] = l
	}

	return due
}

// observeLease takes the renew time of a node's Lease, as it reads at the time at. The node's speaker has the same
// clock as its kubelet. While that clock is unknown, a change between two reads counts as a renewal at the time at.
func (t *tracker) observeLease(at time.Time, node string, renewed time.Time) {
	l := t.leases[node]
	clock := t.speakers[node].clock
	isFirst := l.renewed.IsZero()
	switch {
	case l.renewed.Equal(renewed):
		return
	case isFirst || clock.isKnown():
		l.renewedAt = clock.toLocal(at, renewed)
	default:
		l.renewedAt = at
	}

	hasGap := renewed.Sub(l.renewed) > maxRenewalGap
	if hasGap && !isFirst {
		l.hasMissed = true
	}

	l.renewed = renewed
	t.leases[node] = l
}

// missedRenewals returns the nodes whose kubelets missed a renewal while their Leases were read.
func (t *tracker) missedRenewals() map[string]bool {
	out := map[string]bool{}
	for node, l := range t.leases {
		if l.hasMissed {
			out[node] = true
		}
	}

	return out
}

// suspicions returns the suspicions of all speakers, by the controller's clock.
func (t *tracker) suspicions() []suspicion {
	var out []suspicion
	for name, s := range t.speakers {
		for node, since := range s.lastHeard {
			out = append(out, suspicion{
				speaker: name,
				node:    node,
				since:   since,
			})
		}
	}

	return out
}

// lastSeen returns the last sign of life of each node whose Lease was read: a renewal of the Lease, or a write of the
// node's own speaker. It is the zero time if there was none.
func (t *tracker) lastSeen() map[string]time.Time {
	out := make(map[string]time.Time, len(t.leases))
	for node, l := range t.leases {
		if l.renewed.IsZero() {
			continue // the Lease could not be read
		}

		out[node] = t.lastWrite(node)
		renewedAt := l.renewedAt.Add(-lastWriteMargin)
		if renewedAt.After(out[node]) {
			out[node] = renewedAt
		}
	}

	return out
}

// lastWrite returns the time of the last write of a node's own speaker, as a sign of life. A speaker that reports that
// it is cut off was certainly alive then; other writes may be the node's last.
func (t *tracker) lastWrite(node string) time.Time {
	s := t.speakers[node]
	if s.isCutOff || s.wroteAt.IsZero() {
		return s.wroteAt
	}
	return s.wroteAt.Add(-lastWriteMargin)
}

// NodeWatch finds out for a controller that does not lead whether most speakers miss the leader's node. It reads no
// Leases, since it declares no node dead. The zero NodeWatch has observed nothing.
type NodeWatch struct{ tracker tracker }

// IsMissed reports whether most speakers miss a node; speakers is their number. A suspicion counts if it is from the
// last minute, and after the last write of the node's own speaker. states are the present SpeakerStates.
//
// Call IsMissed often: it dates a change when it first sees it, whatever clock it was written by.
func (w *NodeWatch) IsMissed(at time.Time, states []*v1beta1.SpeakerState, speakers int, node string) bool {
	reports := make([]speakerReport, 0, len(states))
	for _, o := range states {
		reports = append(reports, newSpeakerReport(o))
	}

	w.tracker.observeReports(at, reports)

	in := decisionInput{
		at:         at,
		speakers:   speakers,
		suspicions: w.tracker.suspicions(),
		lastSeen:   map[string]time.Time{node: w.tracker.lastWrite(node)},
	}
	return slices.Contains(in.suspects(), node)
}
