package liveness

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// linkInterval is between questions on a link. It is silent after linkMisses rounds without an
	// answer, and not any more after linkReturns rounds with one: 0.8 s and 10 s.
	linkInterval = 400 * time.Millisecond
	linkMisses   = 2
	linkReturns  = 25
	// onceTime is how long the usual machine has to answer one question, before it is asked three: most rounds end there.
	onceTime = 10 * time.Millisecond
	// idleRounds is how many intervals there are between rounds while nobody announces anything and every link works: none could be
	// missed.
	idleRounds = 10
	// maxNeighbours bounds the foreign machines among those that are asked when the usual one does not answer, window
	// bounds them all.
	maxNeighbours = 3
	window        = 2 * maxNeighbours
)

// links watches the links that heartbeats do not use. If a port is dead with its carrier up, its own node notices:
// it hears nobody there any more, neither speakers nor foreign machines, and reports that to the
// others. If nobody on a link hears anybody, all report the same, and nothing moves.
type links struct {
	config Config
	// known returns what is known of the speakers: which share a link, which are alive, and the address of this node that
	// heartbeats use, whose link is not watched.
	known func() Known

	mu     sync.Mutex
	silent map[string]bool
	// idle: nobody announces anything.
	idle atomic.Bool

	// watched is what is known of each link by name; Run alone uses it.
	watched map[string]*watchedLink
}

// watchedLink is one link under watch.
type watchedLink struct {
	// usual answered last, and is the only one that is asked as long as it does.
	usual lb.Question
	// rounds in a row ended as the last one, which was answered or not.
	answered bool
	rounds   int
	silent   bool
}

// newLinks returns a watch that Run starts.
func newLinks(c Config, known func() Known) *links {
	return &links{config: c, known: known, watched: map[string]*watchedLink{}}
}

// Silent returns the names of links on which this node heard somebody before, and hears nobody now.
func (l *links) Silent() map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silent
}

// Run asks on every link in turn until ctx ends.
func (l *links) Run(ctx context.Context) error {
	tick := time.NewTicker(linkInterval)
	defer tick.Stop()
	for left := 0; ; left-- {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if left > 0 && l.idle.Load() && l.allAnswer() {
			continue
		}
		l.round(ctx)
		left = idleRounds
	}
}

// allAnswer: on each link that is watched somebody answered in the last round, and none is silent.
func (l *links) allAnswer() bool {
	for _, w := range l.watched {
		if w.silent || !w.answered && w.usual != (lb.Question{}) {
			return false
		}
	}
	return true
}

// round asks once on each link that is there.
func (l *links) round(ctx context.Context) {
	known := l.known()
	here := map[string]*watchedLink{}
	for _, own := range l.config.Links() {
		if !own.CanAnnounce() || slices.ContainsFunc(own.Prefixes, func(p netip.Prefix) bool { return p.Addr() == known.Address }) {
			continue
		}
		w := l.watched[own.Name]
		if w == nil {
			w = &watchedLink{}
		}
		here[own.Name] = w
		if neighbours := l.neighbours(own, known.Members, known.View.Alive); len(neighbours) > 0 {
			l.ask(ctx, w, neighbours)
		} else {
			*w = watchedLink{} // nobody could take anything over
		}
	}
	l.watched = here
	l.publish()
}

// neighbours returns the machines to ask on a link: speakers that share it, living ones first, and after the first of
// these some foreign machines. There are none if no speaker shares it.
func (l *links) neighbours(own lb.Interface, members map[string]lb.Member, alive map[string]bool) []lb.Question {
	var out, silent []lb.Question
	for _, name := range slices.Sorted(maps.Keys(members)) {
		for _, t := range members[name].Links {
			if len(t.Addresses) == 0 || t.MAC == own.MAC || !shared(own, t) {
				continue
			}
			q := lb.Question{Link: own.Name, MAC: t.MAC, Address: t.Addresses[0]}
			if alive[name] {
				out = append(out, q)
			} else {
				silent = append(silent, q)
			}
		}
	}
	if len(out)+len(silent) == 0 {
		return nil
	}
	out = slices.Insert(out, min(len(out), maxNeighbours), l.config.Asker.Foreign(own.Name, maxNeighbours)...)
	return append(out, silent...)
}

// ask asks the machine that answered last, and if it does not, as many as are asked at most.
func (l *links) ask(ctx context.Context, w *watchedLink, neighbours []lb.Question) {
	usual := []lb.Question{w.usual}
	if w.usual == (lb.Question{}) || l.config.Asker.Ask(ctx, usual, onceTime)[0] <= 0 && !l.anyAnswers(ctx, usual, w) {
		// None of them twice before all were asked: many may have died at once.
		at := 0
		if !w.answered {
			at = w.rounds * window % len(neighbours)
		}
		neighbours = slices.Concat(neighbours[at:], neighbours[:at])
		if !l.anyAnswers(ctx, neighbours[:min(len(neighbours), window)], w) {
			w.count(false)
			return
		}
	}
	w.count(true)
}

func (l *links) anyAnswers(ctx context.Context, questions []lb.Question, w *watchedLink) bool {
	for i, n := range l.config.Asker.Ask(ctx, questions, wireTime) {
		if n >= minAnswers {
			w.usual = questions[i]
			return true
		}
	}
	return false
}

// count takes the outcome of a round. A link on which nobody ever answered is not silent: it may be empty.
func (w *watchedLink) count(answered bool) {
	if answered != w.answered {
		w.answered, w.rounds = answered, 0
	}
	w.rounds++
	switch {
	case !answered && w.rounds >= linkMisses && w.usual != (lb.Question{}):
		w.silent = true
	case answered && w.rounds >= linkReturns:
		w.silent = false
	}
}

// publish reports which links are silent.
func (l *links) publish() {
	silent := map[string]bool{}
	for name, w := range l.watched {
		if w.silent {
			silent[name] = true
		}
	}
	l.mu.Lock()
	changed := !maps.Equal(silent, l.silent)
	l.silent = silent
	l.mu.Unlock()
	if !changed {
		return
	}
	l.config.Log.Info("links on which nobody answers", "links", slices.Sorted(maps.Keys(silent)))
	l.config.Changed()
}
