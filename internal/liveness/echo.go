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
	minSilentTrials = 2
	// maxTrials bounds the speakers that are tried at once.
	maxTrials = 32
)

// trial is what is known of whether a speaker's echo gets through, from trials while it is heard. A fabric may drop
// echoes, and an older speaker has none.
type trial struct {
	next time.Time
	// echoes: an answer came, and never so many trials in a row without one since; silent counts these.
	echoes bool
	silent int
}

// after returns what is known after a trial with so many answers, or Unasked. heard: the speaker is still heard.
func (t trial) after(now time.Time, answers int, heard bool) trial {
	t.next = now.Add(trialInterval/2 + rand.N(trialInterval))
	switch {
	case answers > 0:
		t.echoes, t.silent = true, 0
	case answers == lb.Unasked || !heard:
	case t.silent+1 < minSilentTrials:
		t.silent, t.next = t.silent+1, now.Add(retrialInterval)
	default:
		t.echoes, t.silent = false, minSilentTrials
	}
	return t
}

// tryEchoes asks speakers that are due for an echo, about no address: one that announces nothing yet may die in the moment after
// it begins, before it could be tried.
func (w *wire) tryEchoes(ctx context.Context) {
	var of []string
	var questions []lb.Question
	answers := map[string]int{}
	for _, node := range w.due() {
		answers[node] = lb.Unasked
		own, _ := w.questions(node, []netip.Addr{netip.IPv6Unspecified()})
		for _, q := range echoes(own) {
			of, questions = append(of, node), append(questions, q)
		}
	}
	if len(answers) == 0 {
		return
	}
	for i, n := range w.config.Asker.Ask(ctx, questions, wireTime) {
		answers[of[i]] = max(n, answers[of[i]])
	}
	defer w.reportEchoes(w.withoutEcho())
	w.mu.Lock()
	defer w.mu.Unlock()
	for node, n := range answers {
		w.trials[node] = w.trials[node].after(w.now(), n, w.heard[node])
	}
}

// reportEchoes reports that withoutEcho returns something else than before.
func (w *wire) reportEchoes(before []string) {
	if !slices.Equal(w.withoutEcho(), before) {
		w.config.Changed()
	}
}

// due returns the speakers to try, which are heard.
func (w *wire) due() (nodes []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	for node := range w.heard {
		if !w.trials[node].next.After(now) && len(nodes) < maxTrials {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// withoutEcho returns the nodes that announce something, whose heartbeats arrive and whose echo does not: only there it matters.
func (w *wire) withoutEcho() (nodes []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for node, t := range w.trials {
		if t.silent >= minSilentTrials && w.heard[node] && w.owns[node].Len() > 0 {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// echoes turns questions by ARP and Neighbor Discovery into those to the speaker itself.
func echoes(questions []lb.Question) []lb.Question {
	out := slices.Clone(questions)
	for i := range out {
		out[i].Echo = true
	}
	return out
}
