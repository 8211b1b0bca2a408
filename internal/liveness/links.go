package liveness

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// linkInterval is between questions on a link.
	linkInterval = 400 * time.Millisecond
	// onceTime is how long the usual machine has to answer one question, before it is asked three: most rounds end
	// there.
	onceTime = 10 * time.Millisecond
	// idleRounds is how many intervals there are between rounds while nobody announces anything and every link works:
	// none could be missed.
	idleRounds = 10
	// maxNeighbours bounds the foreign machines among those that are asked when the usual one does not answer, window
	// bounds them all.
	maxNeighbours = 3
	window        = 2 * maxNeighbours
)

// links watches the links that heartbeats do not use. If a port is dead with its carrier up, its own node notices: no
// machine answers there any more, neither speakers nor foreign machines. It reports that to the others, and so does the
// node of a link that lost its carrier, until machines have answered for a while. If no node on a link hears another,
// all report the same, and nothing moves.
type links struct {
	config Config
	now    func() time.Time
	// known returns what is known of the speakers: which share a link, which are alive, and the address of this node
	// that heartbeats use, whose link is not watched.
	known func() Known
	// idle reports whether no node announces anything.
	idle atomic.Bool

	mu sync.Mutex
	// started reports whether the links were read at least once.
	started bool
	// watched is what is known of each link by name.
	watched map[string]*watchedLink
	// published is what the last round found.
	published findings
	// foreignAt is when foreign machines were asked last. While a speaker answers they need not be asked, and would be
	// forgotten.
	foreignAt time.Time
}

// findings are the links that this node leaves to others.
type findings struct {
	silent map[string]bool
	// unanswered and returned are the links among them that are up, for users: no machine answers, or machines do
	// again.
	unanswered, returned []string
}

// newLinks returns a watch that Run starts.
func newLinks(c Config, known func() Known) *links {
	nothing := findings{silent: map[string]bool{}}
	return &links{config: c, now: time.Now, known: known, watched: map[string]*watchedLink{}, published: nothing}
}

// Silent returns the names of links that this node leaves to others: no machine answers there any more, or the carrier
// came back a short while ago. It counts the carriers as they are now, so that no plan is made by a link that has just
// returned.
func (l *links) Silent() map[string]bool { return l.find().silent }

// find returns what is found now.
func (l *links) find() findings {
	known := l.known()
	l.mu.Lock()
	defer l.mu.Unlock()
	now, present := l.now(), l.config.Links()
	l.observe(now, present)

	out := findings{silent: map[string]bool{}}
	for _, own := range present {
		w := l.watched[own.Name]
		if w == nil || carries(own, known.Address) {
			continue
		}
		if !w.isSilent(now, func() bool { return l.isAlone(own, known) }) {
			continue
		}

		out.silent[own.Name] = true
		switch {
		case !w.up:
		case w.heardSince.IsZero():
			out.unanswered = append(out.unanswered, own.Name)
		default:
			out.returned = append(out.returned, fmt.Sprintf("%s (%v)", own.Name, w.holdTime()))
		}
	}
	return out
}

// observe takes over which links are there, and which carrier each has. The caller holds mu.
func (l *links) observe(now time.Time, present []lb.Interface) {
	if len(present) == 0 {
		return // not read yet
	}
	upSince := now
	if !l.started {
		l.started, upSince = true, l.config.BootedAt
	}
	byName := map[string]lb.Interface{}
	for _, own := range present {
		byName[own.Name] = own
		if l.watched[own.Name] == nil && own.CanAnnounce() {
			l.watched[own.Name] = newWatchedLink(now, upSince, own)
		}
	}
	for name, w := range l.watched {
		own, isPresent := byName[name]
		if !isPresent && !w.heard() {
			delete(l.watched, name) // such as the link of a pod that ended
			continue
		}
		w.observe(now, own)
	}
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

// allAnswer reports whether every link that is up works: a machine answered in the last round, or none ever did.
func (l *links) allAnswer() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.watched {
		if w.up && (w.silent || !w.answered && w.heard()) {
			return false
		}
	}
	return true
}

// round asks once on each link that is up.
func (l *links) round(ctx context.Context) {
	known := l.known()
	l.mu.Lock()
	present := l.config.Links()
	l.observe(l.now(), present)
	l.mu.Unlock()
	for _, own := range present {
		if own.CanAnnounce() {
			l.roundOn(ctx, own, known)
		}
	}
	l.askForeign(ctx, present, known)
	l.publish()
}

// askForeign asks foreign machines from time to time, so that they are known when it matters.
func (l *links) askForeign(ctx context.Context, present []lb.Interface, known Known) {
	now := l.now()
	if now.Sub(l.foreignAt) < foreignInterval {
		return
	}
	l.foreignAt = now
	var foreign []lb.Question
	for _, own := range present {
		if own.CanAnnounce() && !carries(own, known.Address) {
			foreign = append(foreign, l.config.Asker.Foreign(own.Name, maxNeighbours)...)
		}
	}
	if len(foreign) > 0 {
		l.config.Asker.Ask(ctx, foreign, wireTime)
	}
}

// roundOn asks once on one link.
func (l *links) roundOn(ctx context.Context, own lb.Interface, known Known) {
	var asks machines
	if !carries(own, known.Address) {
		asks = l.neighbours(own, known.Members, known.View.Alive)
	}
	before := l.watchedLink(own.Name)
	var found outcome
	if len(asks.all) > 0 {
		found = outcome{l.ask(ctx, before, asks.all), asks.foreign, l.isAlone(own, known)}
	}

	l.mu.Lock()
	defer l.mu.Unlock()
	w, now := l.watched[own.Name], l.now()
	switch {
	case w == nil || !w.up || w.carrier != before.carrier:
		// The answers are older than its carrier.
	case len(asks.all) > 0:
		w.record(now, found)
	case !w.settles(now):
		w.reset() // no node could take anything over
	}
}

// watchedLink returns what is known of a link.
func (l *links) watchedLink(name string) watchedLink {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.watched[name]; w != nil {
		return *w
	}
	return watchedLink{}
}

// carries reports whether a link carries the heartbeats, which this node sends from its address.
func carries(own lb.Interface, address netip.Addr) bool {
	return slices.ContainsFunc(own.Prefixes, func(p netip.Prefix) bool { return p.Addr() == address })
}

// isAlone reports whether no other living node has a link to the same network that is not silent.
func (l *links) isAlone(own lb.Interface, known Known) bool {
	for name, member := range known.Members {
		if name == l.config.Node.Name || !known.View.Alive[name] {
			continue
		}
		for _, theirs := range member.Links {
			if theirs.MAC != own.MAC && !theirs.Silent && shared(own, theirs) {
				return false
			}
		}
	}
	return true
}

// machines are the ones to ask on a link. foreign reports whether there are foreign ones among them.
type machines struct {
	all     []lb.Question
	foreign bool
}

// neighbours returns the machines to ask on a link: speakers that share it, living ones first, and after the first of
// these some foreign machines. There are none if no speaker shares it.
func (l *links) neighbours(own lb.Interface, members map[string]lb.Member, alive map[string]bool) machines {
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
		return machines{}
	}
	foreign := l.config.Asker.Foreign(own.Name, maxNeighbours)
	out = slices.Insert(out, min(len(out), maxNeighbours), foreign...)
	return machines{append(out, silent...), len(foreign) > 0}
}

// ask asks the machine that answered last, and if it does not, as many as are asked at most. It returns the machine
// that answered, zero for none.
func (l *links) ask(ctx context.Context, w watchedLink, neighbours []lb.Question) lb.Question {
	if w.heard() {
		usual := []lb.Question{w.usual}
		if l.config.Asker.Ask(ctx, usual, onceTime)[0] > 0 || l.firstAnswer(ctx, usual) == w.usual {
			return w.usual
		}
	}
	// None of them twice before all were asked: many may have died at once.
	at := 0
	if !w.answered {
		at = w.rounds * window % len(neighbours)
	}
	neighbours = slices.Concat(neighbours[at:], neighbours[:at])
	return l.firstAnswer(ctx, neighbours[:min(len(neighbours), window)])
}

// firstAnswer returns the first machine that answers well enough, zero for none.
func (l *links) firstAnswer(ctx context.Context, questions []lb.Question) lb.Question {
	for i, n := range l.config.Asker.Ask(ctx, questions, wireTime) {
		if n >= minAnswers {
			return questions[i]
		}
	}
	return lb.Question{}
}

// publish calls Changed if anything else is found than before.
func (l *links) publish() {
	found := l.find()
	l.mu.Lock()
	changed := !reflect.DeepEqual(found, l.published)
	l.published = found
	l.mu.Unlock()
	if !changed {
		return
	}
	l.config.Log.Info("links that are left to other nodes", "unanswered", found.unanswered, "returned", found.returned)
	l.config.Changed()
}
