package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/members"
	"github.com/holdfast-lb/holdfast/internal/reach"
)

const (
	// kernelTime is what a node's kernel has to answer. On a LAN it takes a millisecond.
	kernelTime = 150 * time.Millisecond
	// asksAtOnce bounds the nodes that are asked side by side.
	asksAtOnce = 64
)

// cluster is where the nodes are.
type cluster interface {
	Synced() bool
	Uninstalling() bool
	// SpeakerAddresses has the nodes with a speaker, Kernels what answers on any node that lives.
	SpeakerAddresses() map[string]netip.Addr
	Kernels(membersPort uint16) map[string][]netip.AddrPort
}

// listener asks the kernels of the nodes whose speakers are not heard, and knows
// what that means: which nodes are silent, and which are lost to this one where it
// is cut off. Its loop never waits for an answer.
type listener struct {
	node        string
	membersPort uint16
	log         *slog.Logger
	cluster     cluster
	// view returns what is known of the speakers, nil while that is nothing; api whether the API server answers.
	view func() *members.View
	api  func() bool
	// kick runs the loop again, lostChanged is called when lost returns something else than before,
	// asked when a kernel has answered or had its time.
	kick, lostChanged, asked func()
	slots                    chan struct{}

	mu sync.Mutex
	// now is what was known last, mute who was mute then.
	now  surroundings
	mute map[string]bool
	// serving are the nodes that matter, said what lost returned for them.
	serving, said map[string]bool
	// asking has the nodes that have not answered yet.
	asking map[string]bool
	due    *time.Timer
}

func newListener(log *slog.Logger, node string, membersPort uint16) *listener {
	return &listener{
		node: node, membersPort: membersPort, log: log, slots: make(chan struct{}, asksAtOnce),
		now: surroundings{node: node, silence: silence{}, others: silence{}}, asking: map[string]bool{},
	}
}

// sync asks whoever is to be asked.
func (l *listener) sync(ctx context.Context) error {
	view := l.view()
	if view == nil || !l.cluster.Synced() || l.cluster.Uninstalling() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.see(time.Now(), *view)
	for node, addresses := range l.kernels(time.Now()) {
		l.asking[node] = true
		go l.ask(ctx, node, addresses)
	}
	if !maps.Equal(l.now.lost(time.Now(), l.serving), l.said) {
		l.lostChanged()
	}
	if l.due != nil {
		l.due.Stop()
	}
	l.due = time.AfterFunc(l.wait(time.Now()), l.kick)
	return nil
}

// see takes a view over, whoever has it first.
func (l *listener) see(now time.Time, view members.View) {
	was := l.now.cutOff()
	l.now.view, l.now.api, l.now.expected = view, l.api(), map[string]bool{l.node: true}
	missed := map[string]cause{}
	for node := range l.cluster.SpeakerAddresses() {
		l.now.expected[node] = true
		switch {
		case node == l.node || view.Alive[node]:
		case view.Left[node] || l.mute[node]:
			missed[node] = explained
		case view.Dead[node]:
			missed[node] = unexplained
		default:
			missed[node] = notYet
		}
	}
	l.mute = view.Mute
	l.now.silence.keep(now, missed)
	var doubtful map[string]cause
	is := l.now.cutOff()
	if is {
		doubtful = l.now.doubtful(l.serving)
	}
	l.now.others.keep(now, doubtful)
	if is == was {
		return
	}
	heard, expected := l.now.count()
	if is {
		l.log.Warn("cut off: what only nodes can serve that this one does not reach is not announced here", "heard", heard, "expected", expected)
	} else {
		l.log.Info("not cut off any more", "heard", heard, "expected", expected)
	}
}

// kernels returns where to ask the nodes whose turn it is.
func (l *listener) kernels(now time.Time) map[string][]netip.AddrPort {
	out := map[string][]netip.AddrPort{}
	if len(l.now.silence)+len(l.now.others) == 0 {
		return out
	}
	kernels := l.cluster.Kernels(l.membersPort)
	for _, nodes := range []silence{l.now.silence, l.now.others} {
		for node, n := range nodes {
			if !l.asking[node] && !n.due().After(now) {
				out[node] = kernels[node]
			}
		}
	}
	return out
}

func (l *listener) ask(ctx context.Context, node string, addresses []netip.AddrPort) {
	l.slots <- struct{}{}
	answers := reach.Answers(ctx, kernelTime, addresses...)
	<-l.slots
	if ctx.Err() != nil {
		return // what was not answered in time says nothing
	}
	l.mu.Lock()
	delete(l.asking, node)
	for _, nodes := range []silence{l.now.silence, l.now.others} {
		if _, known := nodes[node]; known {
			nodes.heard(time.Now(), node, answers)
		}
	}
	l.mu.Unlock()
	l.kick()
	l.asked()
}

// wait returns how long until somebody is to be asked again, or a doubt ends.
func (l *listener) wait(now time.Time) time.Duration {
	next := quietTime
	for _, nodes := range []silence{l.now.silence, l.now.others} {
		for node, n := range nodes {
			if !l.asking[node] {
				next = min(next, n.due().Sub(now))
			}
			if ends := n.since.Add(doubtTime).Sub(now); n.answered && n.cause != explained && ends > 0 {
				next = min(next, ends)
			}
		}
	}
	return max(0, next)
}

// lost returns which nodes are lost to this one, as lb.Here has it, by the view
// that a plan is made from: what it does not hear is in doubt at once.
func (l *listener) lost(view members.View, services []lb.Service) map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.see(time.Now(), view)
	l.serving = nil
	if l.now.cutOff() {
		l.serving = serving(services, l.now.expected)
		l.kick() // some of these may be new
	}
	l.said = l.now.lost(time.Now(), l.serving)
	return l.said
}

// problems says that this node is cut off.
func (l *listener) problems() []lb.Problem {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.now.cutOff() {
		return nil
	}
	heard, expected := l.now.count()
	nodes := slices.Sorted(maps.Keys(l.said))
	return []lb.Problem{{Object: lb.Object{Kind: config.KindNode, Name: l.node}, Reason: lb.CutOff,
		Message: fmt.Sprintf("node %s hears %d of %d speakers and announces nothing that only these can serve: %s", l.node, heard, expected, nodes)}}
}

// silentNodes is what a SpeakerState says of silence.
type silentNodes struct {
	unreachable, quiet []v1beta1.SilentNode
	// count of those that are missed; complete: all of them have been asked; news: one
	// fell silent just now without a reason.
	count          int
	complete, news bool
	// cutOff: this node hears half of the speakers or fewer.
	cutOff bool
}

// silent returns what to say, at once also of speakers that are silent alone.
func (l *listener) silent(now time.Time, atOnce bool) silentNodes {
	view := l.view()
	l.mu.Lock()
	defer l.mu.Unlock()
	if view != nil {
		l.see(now, *view)
	}
	s := l.now.silence
	if !s.complete() {
		l.kick() // a node may be missed since this view, as one whose pod is new
	}
	return silentNodes{s.unreachable(), s.quiet(now, atOnce), len(s), s.complete(), s.news(now), l.now.cutOff()}
}
