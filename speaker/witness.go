package main

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/members"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// mostWitnessed bounds the missing nodes whose states are read: see inOrder. Those that
	// repeat their word are among the first by name.
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
	// since when each of the missing nodes is missed.
	since map[string]time.Time
	due   *time.Timer
}

// sync reads the words of those that are missed.
func (w *witness) sync(ctx context.Context) error {
	alive := w.alive()
	missed, most := w.missed(alive)
	latest := w.note(time.Now(), missed)
	if !most {
		missed = nil
	}
	asked := w.inOrder(missed, latest)
	asked = asked[:min(len(asked), mostWitnessed)]
	if w.words == nil {
		w.words = members.Witness{}
	}
	w.words.Keep(asked)
	if len(missed) == 0 {
		w.api.Store(false)
		w.say(nil)
		return nil
	}
	for _, node := range asked {
		if word, ok := w.read(ctx, node); ok {
			w.words.Hear(time.Now(), word)
		}
	}
	w.say(w.words.Elsewhere(time.Now(), w.node, alive, missed))
	next := witnessInterval
	if time.Since(latest) > soon {
		next = slowWitnessInterval
	}
	if w.due != nil {
		w.due.Stop()
	}
	w.due = time.AfterFunc(next, w.kick)
	return nil
}

// missed returns the nodes whose speakers are not heard, and whether these are half or more.
func (w *witness) missed(alive map[string]bool) (out []string, most bool) {
	if alive == nil || !w.cluster.Synced() || w.cluster.Uninstalling() {
		return nil, false
	}
	expected := w.cluster.SpeakerAddresses()
	for node := range expected {
		if node != w.node && !alive[node] {
			out = append(out, node)
		}
	}
	return out, 2*len(out) >= len(expected)
}

// note takes up who is missed, and returns since when the latest of them is.
func (w *witness) note(now time.Time, missed []string) (latest time.Time) {
	since := make(map[string]time.Time, len(missed))
	for _, node := range missed {
		if at, known := w.since[node]; known {
			since[node] = at
		} else {
			since[node] = now
		}
		if since[node].After(latest) {
			latest = since[node]
		}
	}
	w.since = since
	return latest
}

// inOrder puts those first that fell silent last and together, for who was dead
// before says nothing; and of these the first by name.
func (w *witness) inOrder(missed []string, latest time.Time) []string {
	before := func(node string) int {
		if latest.Sub(w.since[node]) > soon {
			return 1
		}
		return 0
	}
	return slices.SortedFunc(slices.Values(missed), func(a, b string) int {
		return cmp.Or(cmp.Compare(before(a), before(b)), cmp.Compare(a, b))
	})
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
// themselves: they are alive, and who is on this side takes nothing. What the State
// was made from stays: by it they are missed.
func standAside(elsewhere []string, s *lb.State) {
	if len(elsewhere) == 0 {
		return
	}
	s.Members, s.HeldDown = maps.Clone(s.Members), maps.Clone(s.HeldDown)
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
