package main

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/members"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// mostWitnessed bounds the missing nodes whose states are read: the first by name,
	// among which are those that repeat their word.
	mostWitnessed = 8
	// witnessInterval is between looks soon after a loss, slowWitnessInterval later.
	witnessInterval     = 250 * time.Millisecond
	slowWitnessInterval = time.Second
	soon                = 10 * time.Second
	// readTime bounds one read: an API server that hangs is one that says nothing.
	readTime = time.Second
)

// witness finds out whether half of the speakers or more, that are not heard, are
// running all the same: from what they write to the API server. It reads nothing
// while more than half are alive.
type witness struct {
	node    string
	log     *slog.Logger
	cluster *k8s.Cluster
	alive   func() map[string]bool
	// kick has this loop run again, changed is called when elsewhere changes.
	kick, changed func()
	// elsewhere are the nodes that this side stands aside for.
	elsewhere atomic.Pointer[[]string]
	// api: the API server answered the last question.
	api atomic.Bool

	words members.Witness
	since time.Time
	due   *time.Timer
}

// sync reads the words of those that are missed.
func (w *witness) sync(ctx context.Context) error {
	alive := w.alive()
	missed := w.missed(alive)
	asked := missed[:min(len(missed), mostWitnessed)]
	if w.words == nil {
		w.words = members.Witness{}
	}
	w.words.Keep(asked)
	if len(missed) == 0 {
		w.since = time.Time{}
		w.api.Store(false)
		w.say(nil)
		return nil
	}
	if w.since.IsZero() {
		w.since = time.Now()
	}
	for _, node := range asked {
		if word, ok := w.read(ctx, node); ok {
			w.words.Hear(time.Now(), word)
		}
	}
	w.say(w.words.Elsewhere(time.Now(), w.node, alive, missed))
	next := witnessInterval
	if time.Since(w.since) > soon {
		next = slowWitnessInterval
	}
	if w.due != nil {
		w.due.Stop()
	}
	w.due = time.AfterFunc(next, w.kick)
	return nil
}

// missed returns the nodes whose speakers are not heard, nil while these are less than half.
func (w *witness) missed(alive map[string]bool) []string {
	if alive == nil || !w.cluster.Synced() || w.cluster.Uninstalling() {
		return nil
	}
	expected := w.cluster.SpeakerAddresses()
	var out []string
	for node := range expected {
		if node != w.node && !alive[node] {
			out = append(out, node)
		}
	}
	if 2*len(out) < len(expected) {
		return nil
	}
	slices.Sort(out)
	return out
}

func (w *witness) read(ctx context.Context, node string) (members.Word, bool) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	state, err := w.cluster.SpeakerState(ctx, node)
	if answers := err == nil || apierrors.IsNotFound(err); w.api.Swap(answers) != answers {
		w.changed()
	}
	if err != nil || state.Status.Observed == nil {
		return members.Word{}, false
	}
	word := members.Word{Node: node, Written: state.Status.Observed.String(), Alive: int(state.Status.Members.Alive)}
	for _, n := range slices.Concat(state.Status.Unreachable, state.Status.Silent) {
		word.Misses = append(word.Misses, n.Node)
	}
	if len(state.Status.Unreachable) >= mostNamed || len(state.Status.Silent) >= mostNamed {
		word.Misses = append(word.Misses, w.node) // a full list may leave this node out
	}
	return word, true
}

func (w *witness) say(elsewhere []string) {
	before := w.aside()
	if slices.Equal(before, elsewhere) {
		return
	}
	w.elsewhere.Store(&elsewhere)
	if len(elsewhere) > 0 {
		w.log.Warn("partitioned: this side stands aside for nodes that are running and do not hear it", "elsewhere", elsewhere)
	} else {
		w.log.Info("this side does not stand aside any more")
	}
	w.changed()
}

// standAside gives the nodes elsewhere all that they can announce, as they do
// themselves: they are alive, and who is on this side takes nothing.
func standAside(elsewhere []string, s *lb.State) {
	if len(elsewhere) == 0 {
		return
	}
	for node := range s.Members {
		s.HeldDown[node] = true
	}
	for _, node := range elsewhere {
		s.Members[node] = true
	}
}

// apiAnswers reports whether the API server answers, as far as it is asked: while half of
// the speakers or more are missed.
func (w *witness) apiAnswers() bool { return w.api.Load() }

// aside returns the nodes that this side stands aside for, none if it does not.
func (w *witness) aside() []string {
	if p := w.elsewhere.Load(); p != nil {
		return *p
	}
	return nil
}
