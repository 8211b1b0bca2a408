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

// isDue reports whether it is time for a trial.
func (t trial) isDue(now time.Time) bool { return !t.next.After(now) }

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

// tryEchoes asks speakers that are due for an echo, about no address: one that announces nothing yet may die in the
// moment after it begins, before it could be tried.
func (w *wire) tryEchoes(ctx context.Context) {
	nodes := w.due()
	if len(nodes) == 0 {
		return
	}
	about := map[string]questions{}
	var asked []lb.Question
	for _, node := range nodes {
		q := w.questions(node, []netip.Addr{netip.IPv6Unspecified()})
		q.own = echoes(q.own)
		about[node] = q
		asked = slices.Concat(asked, q.own, q.elsewhere, q.kernelElsewhere)
	}
	answers := map[lb.Question]int{}
	for i, n := range w.config.Asker.Ask(ctx, asked, wireTime) {
		answers[asked[i]] = n
	}
	most := func(questions []lb.Question) int {
		n := lb.Unasked
		for _, q := range questions {
			n = max(n, answers[q])
		}
		return n
	}

	defer w.reportEchoes(w.withoutEcho())
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	note := func(trials map[string]trial, node string, answers int) {
		if t := trials[node]; t.isDue(now) {
			trials[node] = t.after(now, answers, w.heard[node])
		}
	}
	for node, q := range about {
		note(w.trials, node, most(q.own))
		elsewhere := most(q.elsewhere)
		if elsewhere == 0 && most(q.kernelElsewhere) <= 0 {
			elsewhere = lb.Unasked // no frame gets through, such as where its port is dead
		}
		note(w.trialsElsewhere, node, elsewhere)
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
		isDue := w.trials[node].isDue(now) || w.trialsElsewhere[node].isDue(now)
		if isDue && len(nodes) < maxTrials {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// withoutEcho returns the nodes that announce something, whose heartbeats arrive and whose echo does not: only there it
// matters.
func (w *wire) withoutEcho() (nodes []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for node, t := range w.trials {
		isSilent := max(t.silent, w.trialsElsewhere[node].silent) >= minSilentTrials
		if isSilent && w.heard[node] && w.owns[node].Len() > 0 {
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
