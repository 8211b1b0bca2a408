package liveness

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// maxVotesRead bounds the missing nodes whose votes are read: see inOrder. The speakers that
	// repeat their votes are among the first by name.
	maxVotesRead = 8
	// voteInterval is between reads soon after a loss, slowVoteInterval later.
	voteInterval     = 250 * time.Millisecond
	slowVoteInterval = time.Second
	soon             = 10 * time.Second
	// readTime bounds one read: an API server that hangs counts as silent.
	readTime = time.Second
)

// ErrAway is returned where nothing shows that the network reaches the API server. A refusal does show it. An error of the server itself
// does not: it may come from a proxy on this very node that reaches none.
var ErrAway = errors.New("the API server does not answer")

// voteReader finds out whether half of the speakers or more, that are not heard, are
// running all the same: from what they write to the API server. It reads nothing
// while more than half are heard.
type voteReader struct {
	node    string
	log     *slog.Logger
	cluster Cluster
	// changed is called when the partition changes.
	changed func()
	loop    *daemon.Loop
	// last is the last result of the votes.
	last atomic.Pointer[lb.Partition]
	// api: the API server answered the last read.
	api atomic.Bool

	mu        sync.Mutex
	heard     map[string]bool
	expected  map[string]netip.Addr
	linkFails bool

	votes votes
	// since when each of the missing nodes is missed.
	since map[string]time.Time
}

func newVoteReader(c Config) *voteReader {
	r := &voteReader{node: c.Node.Name, log: c.Log, cluster: c.Cluster, changed: c.Changed, votes: votes{}}
	r.loop = newLoop(c.Log, "partition", r.sync)
	return r
}

// set takes over which nodes are heard, which have a speaker, and whether this node's link fails.
func (r *voteReader) set(heard map[string]bool, expected map[string]netip.Addr, linkFails bool) {
	r.mu.Lock()
	r.heard, r.expected, r.linkFails = heard, expected, linkFails
	r.mu.Unlock()
	r.loop.Kick()
}

// sync reads the votes of speakers that are missed.
func (r *voteReader) sync(ctx context.Context) (time.Duration, error) {
	r.mu.Lock()
	heard, expected, linkFails := r.heard, r.expected, r.linkFails
	r.mu.Unlock()
	missed, most := r.missed(heard, expected)
	latest := r.note(time.Now(), missed)
	if !most {
		missed = nil
	}
	voters := r.inOrder(missed, latest)
	voters = voters[:min(len(voters), maxVotesRead)]
	ours := slices.Min(append(slices.Collect(maps.Keys(heard)), r.node))
	r.votes.retain(append(voters, ours))
	if len(missed) == 0 {
		r.api.Store(false)
		r.publish(lb.Partition{})
		return 0, nil
	}
	for _, node := range voters {
		r.read(ctx, node, heard)
	}
	if ours == r.node {
		r.votes.add(time.Now(), Vote{Node: ours, LinkFails: linkFails})
	} else {
		r.read(ctx, ours, heard)
	}
	r.publish(r.votes.partition(time.Now(), r.node, heard, missed))
	if time.Since(latest) > soon {
		return slowVoteInterval, nil
	}
	return voteInterval, nil
}

// missed returns the nodes whose speakers are not heard, and whether these are half or more.
func (r *voteReader) missed(heard map[string]bool, expected map[string]netip.Addr) (out []string, most bool) {
	for node := range expected {
		if node != r.node && !heard[node] {
			out = append(out, node)
		}
	}
	return out, 2*len(out) >= len(expected)
}

// note remembers which nodes are missed, and returns since when the latest of them is.
func (r *voteReader) note(now time.Time, missed []string) (latest time.Time) {
	since := make(map[string]time.Time, len(missed))
	for _, node := range missed {
		at, known := r.since[node]
		if !known {
			at = now
		}
		if since[node] = at; at.After(latest) {
			latest = at
		}
	}
	r.since = since
	return latest
}

// inOrder puts those first that fell silent last and together, since a node that was dead
// before does not vote; and of these the first by name.
func (r *voteReader) inOrder(missed []string, latest time.Time) []string {
	before := func(node string) int {
		if latest.Sub(r.since[node]) > soon {
			return 1
		}
		return 0
	}
	return slices.SortedFunc(slices.Values(missed), func(a, b string) int {
		return cmp.Or(cmp.Compare(before(a), before(b)), cmp.Compare(a, b))
	})
}

func (r *voteReader) read(ctx context.Context, node string, heard map[string]bool) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	vote, err := r.cluster.Vote(ctx, node)
	if is := !errors.Is(err, ErrAway); r.api.Swap(is) != is {
		r.changed()
	}
	if err == nil && vote.Written != "" {
		vote.Node = node
		if heard[node] { // one of this side votes on nothing but its link
			vote = Vote{Node: node, Written: vote.Written, LinkFails: vote.LinkFails}
		}
		r.votes.add(time.Now(), vote.untruncated(r.node, heard))
	}
}

func (r *voteReader) publish(now lb.Partition) {
	before := r.partition()
	if reflect.DeepEqual(before, now) {
		return
	}
	r.last.Store(&now)
	switch {
	case slices.Equal(before.YieldsTo, now.YieldsTo):
	case len(now.YieldsTo) > 0:
		r.log.Warn("partitioned: this side yields to nodes that are running and do not hear it", "nodes", now.YieldsTo)
	default:
		r.log.Info("this side does not yield any more")
	}
	r.changed()
}

// apiAnswers reports whether the API server answers, as far as it is read: while half of
// the speakers or more are missed.
func (r *voteReader) apiAnswers() bool { return r.api.Load() }

// partition returns the last result of the votes, and so the nodes that this side yields to.
func (r *voteReader) partition() lb.Partition {
	if p := r.last.Load(); p != nil {
		return *p
	}
	return lb.Partition{}
}
