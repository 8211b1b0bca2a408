package liveness

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// wireTime is how long answers on the wire may take.
	wireTime = 30 * time.Millisecond
	// maxAsked bounds the addresses that a node is asked for on each link, and maxForeign the foreign machines that
	// are asked beside it: some of them only claim to be there.
	maxAsked   = 2
	maxForeign = 8
)

// Asker puts questions to machines on a link: layer2.Responder.
type Asker interface {
	Ask(ctx context.Context, questions []lb.Question, within time.Duration) []int
	Foreign(linkName string, n int) []lb.Question
}

// wire asks the speaker of a node that fell silent whether it still answers for what it announces (lb.Question), and
// machines that are no speakers whether this node's link works at all: these by ARP and Neighbor Discovery at their
// own MACs (RFC 1122 section 2.3.2.1, RFC 4861 section 7.3). So is a node whose echo did not get through before.
type wire struct {
	config Config
	now    func() time.Time

	mu sync.Mutex
	// own is this node's address that heartbeats use: the link that carries it is the one that matters.
	own netip.Addr
	// members are the speakers' metadata, announced what each node announces, or what it did
	// when it announced anything.
	members   map[string]lb.Member
	announced map[string]lb.Map[netip.Addr, struct{}]
	// owners are what was set last, and owns has the addresses of each.
	owners lb.Map[netip.Addr, string]
	owns   map[string]lb.Map[netip.Addr, struct{}]
	// heard has those whose heartbeats arrive.
	heard  map[string]bool
	trials map[string]trial
	// answeredAt is when the foreign machines that answered lately did so last.
	answeredAt map[lb.Question]time.Time
}

const (
	// foreignInterval is how often foreign machines are asked while all is well. As long as none answers, they are
	// asked every lookInterval. If none answered for foreignTime none is there, and silence shows nothing.
	lookInterval    = time.Second
	foreignInterval = 10 * time.Second
	foreignTime     = 30 * time.Second
)

// newWire returns a wire that knows of no node yet.
func newWire(c Config) *wire {
	return &wire{
		config: c, now: time.Now,
		announced: map[string]lb.Map[netip.Addr, struct{}]{}, owns: map[string]lb.Map[netip.Addr, struct{}]{},
		trials: map[string]trial{}, answeredAt: map[lb.Question]time.Time{},
	}
}

// set takes over the speakers' metadata, which of them are heard, which node announces each address by layer 2, and the
// address of this node that heartbeats use.
func (w *wire) set(members map[string]lb.Member, heard map[string]bool, owners lb.Map[netip.Addr, string], own netip.Addr) {
	w.mu.Lock()
	same := lb.SameMap(members, w.members) && maps.Equal(heard, w.heard) && w.owners.Same(owners) && own == w.own
	w.mu.Unlock()
	if same {
		return // as mostly: there may be a thousand of them
	}
	defer w.reportEchoes(w.withoutEcho())
	w.mu.Lock()
	defer w.mu.Unlock()
	for node := range heard {
		if !w.heard[node] {
			w.trials[node] = trial{echoes: w.trials[node].echoes} // it may be another run
		}
	}
	moved := map[string][]netip.Addr{}
	w.owners.Changes(owners, func(a netip.Addr, old, new string, _, _ bool) {
		moved[old], moved[new] = append(moved[old], a), append(moved[new], a)
	})
	delete(moved, "")
	w.owners = owners
	for node, addrs := range moved {
		w.owns[node] = w.owns[node].With(slices.Values(addrs), func(a netip.Addr) (v struct{}, has bool) { return v, owners.Of(a) == node })
		if w.owns[node].Len() == 0 {
			delete(w.owns, node)
		}
	}
	w.members, w.heard, w.own = members, heard, own
	maps.DeleteFunc(w.announced, func(node string, _ lb.Map[netip.Addr, struct{}]) bool { _, known := members[node]; return !known })
	maps.DeleteFunc(w.trials, func(node string, _ trial) bool { _, known := members[node]; return !known })
	maps.Copy(w.announced, w.owns)
}

// run asks foreign machines and speakers from time to time until ctx ends, so that it is known which of them answer when it
// matters.
func (w *wire) run(ctx context.Context) error {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		for _, l := range w.config.Links() {
			if w.carriesHeartbeats(l) && w.foreignDue() {
				asked := w.config.Asker.Foreign(l.Name, maxForeign)
				w.foreign(asked, w.config.Asker.Ask(ctx, asked, wireTime))
			}
		}
		w.tryEchoes(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (w *wire) foreignDue() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.answeredAt {
		if w.now().Sub(at) < foreignInterval {
			return false
		}
	}
	return true
}

// ask asks about one node.
func (w *wire) ask(node string) heartbeat.Answer {
	w.mu.Lock()
	addresses, echoed := slices.Collect(w.announced[node].Keys()), w.trials[node].echoes
	w.mu.Unlock()
	own, foreign := w.questions(node, addresses)
	asked := echoes(own)
	if !echoed {
		asked = append(asked, own...)
	}
	counts := w.config.Asker.Ask(context.Background(), slices.Concat(asked, foreign), wireTime)
	return heartbeat.Answer{Node: anyOf(counts[:len(asked)]), Foreign: w.foreign(foreign, counts[len(asked):])}
}

// foreign returns what the answers of foreign machines show. The silence of one that did not answer lately shows nothing.
func (w *wire) foreign(asked []lb.Question, counts []int) heartbeat.Reply {
	out := allOf(counts)
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.answeredAt, func(_ lb.Question, at time.Time) bool { return w.now().Sub(at) > foreignTime })
	answered := false
	for i, q := range asked {
		if counts[i] > 0 {
			w.answeredAt[q] = w.now()
		}
		_, lately := w.answeredAt[q]
		answered = answered || lately
	}
	if out == heartbeat.Silent && !answered {
		return heartbeat.NotAsked
	}
	return out
}

// questions returns the questions about addresses to the node, and to foreign machines: on the link of the heartbeats if
// the node shares it, since another link shows nothing about that one. Otherwise only the node is asked, on all links
// that it shares.
func (w *wire) questions(node string, addresses []netip.Addr) (own, foreign []lb.Question) {
	w.mu.Lock()
	theirs := w.members[node].Links
	w.mu.Unlock()
	for _, l := range w.config.Links() {
		if !l.CanAnnounce() {
			continue
		}
		for _, t := range theirs {
			if !shared(l, t) {
				continue
			}
			var here []lb.Question
			for _, a := range of(addresses, t) {
				here = append(here, lb.Question{Link: l.Name, MAC: t.MAC, Address: a})
			}
			if w.carriesHeartbeats(l) {
				return here, w.config.Asker.Foreign(l.Name, maxForeign)
			}
			own = append(own, here...)
			break
		}
	}
	return own, nil
}

func (w *wire) carriesHeartbeats(l lb.Interface) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return l.CanAnnounce() && slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return p.Addr() == w.own })
}

// shared reports whether a link of ours and one of another node are on one network.
func shared(ours lb.Interface, theirs lb.Link) bool {
	return slices.ContainsFunc(ours.Prefixes, func(p netip.Prefix) bool {
		return !p.Addr().IsLinkLocalUnicast() && slices.Contains(theirs.Prefixes, p.Masked())
	})
}

// of returns the addresses to ask for on a link: those of its own subnets first, which the node surely announces there.
func of(announced []netip.Addr, l lb.Link) []netip.Addr {
	within := func(a netip.Addr) bool {
		return slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	var out, others []netip.Addr
	for _, a := range announced {
		if len(out) == maxAsked {
			break
		}
		if within(a) {
			out = append(out, a)
		} else if len(others) < maxAsked {
			others = append(others, a)
		}
	}
	return append(out, others[:min(len(others), maxAsked-len(out))]...)
}

// minAnswers is how many of three questions must be answered.
const minAnswers = 2

// anyOf reports whether a question was answered well enough.
func anyOf(counts []int) heartbeat.Reply {
	out := heartbeat.NotAsked
	for _, n := range counts {
		switch {
		case n >= minAnswers:
			return heartbeat.Answered
		case n != lb.Unasked:
			out = heartbeat.Silent
		}
	}
	return out
}

// allOf reports whether the machines that are there answered well enough, all together: where most frames are lost,
// one of many that does so is chance.
func allOf(counts []int) heartbeat.Reply {
	out, sum, answering := heartbeat.NotAsked, 0, 0
	for _, n := range counts {
		if n == lb.Unasked {
			continue
		}
		out = heartbeat.Silent
		sum += n
		answering += min(n, 1)
	}
	if answering > 0 && sum >= minAnswers*answering {
		out = heartbeat.Answered
	}
	return out
}
