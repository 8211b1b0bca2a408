package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
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
	// kick has this loop run again, changed is called when the partition changes.
	kick, changed func()
	// partition is what the words of the others came to last.
	partition atomic.Pointer[lb.Partition]
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
		w.say(lb.Partition{})
		return nil
	}
	for _, node := range asked {
		if word, ok := w.read(ctx, node); ok {
			w.words.Hear(time.Now(), word)
		}
	}
	w.say(w.words.Partition(time.Now(), w.node, alive, missed))
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
	if is := answers(err); w.api.Swap(is) != is {
		w.changed()
	}
	if err != nil || state.Status.Observed == nil {
		return members.Word{}, false
	}
	return w.word(node, state.Status), true
}

// answers reports whether what came of a question shows that there is a network: also a
// refusal does. That a server is at fault may come from a proxy on this very node
// which reaches none, and so shows nothing.
func answers(err error) bool {
	var status apierrors.APIStatus
	return err == nil || errors.As(err, &status) && status.Status().Code < http.StatusInternalServerError
}

// word is what stands in the state of a node. A full list may leave out the nodes of this side.
func (w *witness) word(node string, s v1beta1.SpeakerStateStatus) members.Word {
	word := members.Word{Node: node, Written: s.Observed.String(), Alive: int(s.Members.Alive), Expected: int(s.Members.Expected)}
	for _, n := range s.Unreachable {
		word.Unreachable = append(word.Unreachable, n.Node)
	}
	if len(s.Unreachable) >= mostNamed {
		word.Unreachable = slices.AppendSeq(word.Unreachable, maps.Keys(w.alive()))
	}
	word.Misses = slices.Clone(word.Unreachable)
	for _, n := range s.Silent {
		word.Misses = append(word.Misses, n.Node)
	}
	if len(s.Silent) >= mostNamed {
		word.Misses = append(word.Misses, w.node)
	}
	return word
}

func (w *witness) say(now lb.Partition) {
	before := w.aside()
	if reflect.DeepEqual(before, now) {
		return
	}
	w.partition.Store(&now)
	switch {
	case slices.Equal(before.Elsewhere, now.Elsewhere):
	case len(now.Elsewhere) > 0:
		w.log.Warn("partitioned: this side stands aside for nodes that are running and do not hear it", "elsewhere", now.Elsewhere)
	default:
		w.log.Info("this side does not stand aside any more")
	}
	w.changed()
}

// standAside gives the nodes elsewhere all that they can announce, as they do
// themselves: they are alive, and who is on this side takes nothing but what they
// refuse. What the State was made from stays: by it they are missed.
func standAside(partition lb.Partition, s *lb.State) {
	s.Here.Partition = partition
	if len(partition.Elsewhere) == 0 {
		return
	}
	s.Members, s.HeldDown = maps.Clone(s.Members), maps.Clone(s.HeldDown)
	for node := range s.Members {
		s.HeldDown[node] = true
	}
	for _, node := range partition.Elsewhere {
		s.Members[node] = true
	}
}

// apiAnswers reports whether the API server answers, as far as it is asked: while half of
// the speakers or more are missed.
func (w *witness) apiAnswers() bool { return w.api.Load() }

// aside returns what the words of other sides came to, and so whom this side stands aside for.
func (w *witness) aside() lb.Partition {
	if p := w.partition.Load(); p != nil {
		return *p
	}
	return lb.Partition{}
}
