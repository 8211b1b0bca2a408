package liveness

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// trialInterval is the mean time between trials of one speaker's echo. A trial without an answer is repeated after
	// retrialInterval, and counts only then: its node may have died in that moment.
	trialInterval   = time.Minute
	retrialInterval = 5 * time.Second
	minMissedTrials = 2
	// maxTrials bounds the speakers that are tried at once.
	maxTrials = 32
)

// echoTrial is what is known of whether a speaker's echo gets through, from trials while its heartbeats arrive. A
// fabric may drop echoes, and an older speaker has none.
type echoTrial struct {
	// dueAt is when the next trial is.
	dueAt time.Time
	// getsThrough reports whether an answer came, and never minMissedTrials in a row without one since.
	getsThrough bool
	// misses counts the last trials in a row without an answer, up to minMissedTrials.
	misses int
}

// isDue reports whether it is time for a trial.
func (t echoTrial) isDue(at time.Time) bool { return !t.dueAt.After(at) }

// after returns what is known after a trial, by the number of its answers, or Unasked. isHeard reports whether the
// speaker's heartbeats still arrive.
func (t echoTrial) after(at time.Time, answers int, isHeard bool) echoTrial {
	t.dueAt = at.Add(trialInterval/2 + rand.N(trialInterval))
	switch {
	case answers > 0:
		t.getsThrough = true
		t.misses = 0
	case answers == lb.Unasked || !isHeard:
	case t.misses+1 < minMissedTrials:
		t.misses++
		t.dueAt = at.Add(retrialInterval)
	default:
		t.getsThrough = false
		t.misses = minMissedTrials
	}

	return t
}

// tryEchoes asks speakers that are due for an echo, about no address: a speaker that announces nothing yet may die in
// the moment after it begins, before it could be tried.
func (w *wireChecker) tryEchoes(ctx context.Context) {
	nodes := w.dueNodes()
	if len(nodes) == 0 {
		return
	}

	byNode := map[string]nodeQuestions{}
	var all []lb.Question
	for _, node := range nodes {
		q := w.questions(node, []netip.Addr{netip.IPv6Unspecified()})
		q.own = echoes(q.own)
		byNode[node] = q
		all = slices.Concat(all, q.own, q.elsewhere, q.kernelElsewhere)
	}

	answers := map[lb.Question]int{}
	for i, n := range w.config.Asker.Ask(ctx, all, wireTime) {
		answers[all[i]] = n
	}

	defer w.reportEchoes(w.withoutEcho())
	w.mu.Lock()
	defer w.mu.Unlock()
	for node, q := range byNode {
		w.recordTrials(node, q, answers)
	}
}

// recordTrials records the answers to the echoes of a node. The caller holds mu.
func (w *wireChecker) recordTrials(node string, q nodeQuestions, answers map[lb.Question]int) {
	maxAnswers := func(questions []lb.Question) int {
		n := lb.Unasked
		for _, q := range questions {
			n = max(n, answers[q])
		}
		return n
	}

	at := w.clock()
	record := func(trials map[string]echoTrial, answers int) {
		if t := trials[node]; t.isDue(at) {
			trials[node] = t.after(at, answers, w.heard[node])
		}
	}

	record(w.trials, maxAnswers(q.own))
	elsewhere := maxAnswers(q.elsewhere)
	if elsewhere == 0 && maxAnswers(q.kernelElsewhere) <= 0 {
		elsewhere = lb.Unasked // no frame gets through, for example because its port is dead
	}
	record(w.trialsElsewhere, elsewhere)
}

// reportEchoes calls Changed if withoutEcho returns something else than before.
func (w *wireChecker) reportEchoes(before []string) {
	if !slices.Equal(w.withoutEcho(), before) {
		w.config.Changed()
	}
}

// dueNodes returns the nodes to try, whose heartbeats arrive.
func (w *wireChecker) dueNodes() (nodes []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.clock()
	for node := range w.heard {
		isDue := w.trials[node].isDue(at) || w.trialsElsewhere[node].isDue(at)
		if isDue && len(nodes) < maxTrials {
			nodes = append(nodes, node)
		}
	}

	return nodes
}

// withoutEcho returns the nodes that announce something, whose heartbeats arrive and whose echo does not: only there it
// matters.
func (w *wireChecker) withoutEcho() (nodes []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for node, t := range w.trials {
		hasNoEcho := max(t.misses, w.trialsElsewhere[node].misses) >= minMissedTrials
		if hasNoEcho && w.heard[node] && w.ownedBy[node].Len() > 0 {
			nodes = append(nodes, node)
		}
	}

	slices.Sort(nodes)
	return nodes
}

// echoes turns questions by ARP and Neighbor Discovery into echoes to the speaker itself.
func echoes(questions []lb.Question) []lb.Question {
	out := slices.Clone(questions)
	for i := range out {
		out[i].Echo = true
	}
	return out
}
