package liveness

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/loop"
)

const (
	// mostWitnessed bounds the missing nodes whose words are read: see inOrder. Those that
	// repeat their word are among the first by name.
	maxVotesRead = 8
	// witnessInterval is between looks soon after a loss, slowWitnessInterval later.
	voteInterval     = 250 * time.Millisecond
	slowVoteInterval = time.Second
	soon                = 10 * time.Second
	// readTime bounds one read: an API server that hangs is one that says nothing.
	readTime = time.Second
)

// ErrAway is that nothing shows that the network reaches the API server. A refusal does show it. That a server is
// at fault may come from a proxy on this very node which reaches none, and so shows nothing.
var ErrAway = errors.New("the API server does not answer")

// witness finds out whether half of the speakers or more, that are not heard, are
// running all the same: from what they write to the API server. It reads nothing
// while more than half are alive.
type voteReader struct {
	node    string
	log     *slog.Logger
	cluster Cluster
	// changed is called when the partition changes.
	changed func()
	loop    *loop.Loop
	// partition is what the words of the others came to last.
	last atomic.Pointer[lb.Partition]
	// api: the API server answered the last question.
	api atomic.Bool

	mu       sync.Mutex
	alive    map[string]bool
	expected map[string]netip.Addr

	votes votes
	// since when each of the missing nodes is missed.
	since map[string]time.Time
}

func newVoteReader(c Config) *voteReader {
	w := &voteReader{node: c.Node.Name, log: c.Log, cluster: c.Cluster, changed: c.Changed, votes: votes{}}
	w.loop = newLoop(c.Log, "partition", w.sync)
	return w
}

// set tells who is alive, and which nodes have a speaker.
func (w *voteReader) set(alive map[string]bool, expected map[string]netip.Addr) {
	w.mu.Lock()
	w.alive, w.expected = alive, expected
	w.mu.Unlock()
	w.loop.Kick()
}

// sync reads the words of those that are missed.
func (w *voteReader) sync(ctx context.Context) (time.Duration, error) {
	w.mu.Lock()
	alive, expected := w.alive, w.expected
	w.mu.Unlock()
	missed, most := w.missed(alive, expected)
	latest := w.note(time.Now(), missed)
	if !most {
		missed = nil
	}
	asked := w.inOrder(missed, latest)
	asked = asked[:min(len(asked), maxVotesRead)]
	w.votes.retain(asked)
	if len(missed) == 0 {
		w.api.Store(false)
		w.publish(lb.Partition{})
		return 0, nil
	}
	for _, node := range asked {
		w.read(ctx, node, alive)
	}
	w.publish(w.votes.partition(time.Now(), w.node, alive, missed))
	if time.Since(latest) > soon {
		return slowVoteInterval, nil
	}
	return voteInterval, nil
}

// missed returns the nodes whose speakers are not heard, and whether these are half or more.
func (w *voteReader) missed(alive map[string]bool, expected map[string]netip.Addr) (out []string, most bool) {
	for node := range expected {
		if node != w.node && !alive[node] {
			out = append(out, node)
		}
	}
	return out, 2*len(out) >= len(expected)
}

// note takes up who is missed, and returns since when the latest of them is.
func (w *voteReader) note(now time.Time, missed []string) (latest time.Time) {
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
func (w *voteReader) inOrder(missed []string, latest time.Time) []string {
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

func (w *voteReader) read(ctx context.Context, node string, alive map[string]bool) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	word, err := w.cluster.Vote(ctx, node)
	if is := !errors.Is(err, ErrAway); w.api.Swap(is) != is {
		w.changed()
	}
	if err == nil && word.Written != "" {
		word.Node = node
		w.votes.add(time.Now(), word.untruncated(w.node, alive))
	}
}

func (w *voteReader) publish(now lb.Partition) {
	before := w.partition()
	if reflect.DeepEqual(before, now) {
		return
	}
	w.last.Store(&now)
	switch {
	case slices.Equal(before.Elsewhere, now.Elsewhere):
	case len(now.Elsewhere) > 0:
		w.log.Warn("partitioned: this side stands aside for nodes that are running and do not hear it", "elsewhere", now.Elsewhere)
	default:
		w.log.Info("this side does not stand aside any more")
	}
	w.changed()
}

// apiAnswers reports whether the API server answers, as far as it is asked: while half of
// the speakers or more are missed.
func (w *voteReader) apiAnswers() bool { return w.api.Load() }

// aside returns what the words of other sides came to, and so whom this side stands aside for.
func (w *voteReader) partition() lb.Partition {
	if p := w.last.Load(); p != nil {
		return *p
	}
	return lb.Partition{}
}
