package liveness

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
)

const (
	// wireTime is what answers of the wire may take.
	wireTime = 30 * time.Millisecond
	// mostAsked bounds the addresses that a node is asked for on each link, and the foreign machines that
	// are asked beside it.
	maxAsked = 2
)

// Asker puts questions to machines on a link: layer2.Responder.
type Asker interface {
	Ask(ctx context.Context, questions []layer2.Question, within time.Duration) []int
	Foreign(linkName string, n int) []layer2.Question
}

// wire asks a node that fell silent whether it still answers for what it announces, by ARP and
// Neighbor Discovery at its own MAC (RFC 1122 section 2.3.2.1, RFC 4861 section 7.3), and machines
// that are no speakers whether this node's link works at all.
type wire struct {
	asker Asker
	links func() []link.Link
	now   func() time.Time

	mu sync.Mutex
	// own is the address by which heartbeats come: the link that carries it is the one that matters.
	own netip.Addr
	// members are what the speakers told of themselves, announced what each node announces, or
	// did when it announced anything.
	members   map[string]lb.Member
	announced map[string][]netip.Addr
	// strangers is when a foreign machine answered last.
	foreignAt time.Time
}

const (
	// strangersEvery is how often a foreign machine is to answer while all is well. It is looked for
	// every lookInterval, since it may be new. Where none answered for strangersTime none is there, and silence says nothing.
	lookInterval   = time.Second
	foreignInterval = 10 * time.Second
	foreignTime  = 30 * time.Second
)

// newWire returns a wire that knows of no node yet.
func newWire(asker Asker, links func() []link.Link) *wire {
	return &wire{asker: asker, links: links, now: time.Now, announced: map[string][]netip.Addr{}}
}

// set tells what the speakers told of themselves, which node announces each address by layer 2, and the address
// of this node that heartbeats use.
func (w *wire) set(members map[string]lb.Member, owners map[netip.Addr]string, own netip.Addr) {
	announced := map[string][]netip.Addr{}
	for a, node := range owners {
		announced[node] = append(announced[node], a)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.members, w.own = members, own
	for node := range w.announced {
		if _, known := members[node]; !known {
			delete(w.announced, node)
		}
	}
	for node, addresses := range announced {
		w.announced[node] = addresses
	}
}

// run asks foreign machines now and then until ctx ends, so that it is known whether there are any when it matters.
func (w *wire) run(ctx context.Context) error {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		for _, l := range w.links() {
			if w.carriesHeartbeats(l) && w.due() {
				w.foreign(w.asker.Ask(ctx, w.asker.Foreign(l.Name, maxAsked), wireTime))
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (w *wire) due() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.foreignAt.IsZero() || w.now().Sub(w.foreignAt) >= foreignInterval
}

// ask asks about one node.
func (w *wire) ask(node string) heartbeat.Answer {
	own, foreign := w.questions(node)
	counts := w.asker.Ask(context.Background(), append(slices.Clone(own), foreign...), wireTime)
	return heartbeat.Answer{Node: anyOf(counts[:len(own)]), Foreign: w.foreign(counts[len(own):])}
}

// foreign returns what the answers of foreign machines show.
func (w *wire) foreign(counts []int) heartbeat.Reply {
	out := allOf(counts)
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.ContainsFunc(counts, func(n int) bool { return n > 0 }) {
		w.foreignAt = w.now()
	}
	if out == heartbeat.Silent && (w.foreignAt.IsZero() || w.now().Sub(w.foreignAt) > foreignTime) {
		return heartbeat.NotAsked
	}
	return out
}

// questions returns what the node is asked, and what foreign machines are: on the link of the heartbeats if
// the node shares it, since another one says nothing of that; else the node alone is asked, on all that it shares.
func (w *wire) questions(node string) (own, foreign []layer2.Question) {
	w.mu.Lock()
	theirs, announced := w.members[node].Links, w.announced[node]
	w.mu.Unlock()
	for _, l := range w.links() {
		if !l.CanAnnounce() {
			continue
		}
		for _, t := range theirs {
			if !shared(l, t) {
				continue
			}
			var here []layer2.Question
			for _, a := range of(announced, t) {
				here = append(here, layer2.Question{Link: l.Name, MAC: link.MAC(t.MAC), Address: a})
			}
			if w.carriesHeartbeats(l) {
				return here, w.asker.Foreign(l.Name, maxAsked)
			}
			own = append(own, here...)
			break
		}
	}
	return own, nil
}

func (w *wire) carriesHeartbeats(l link.Link) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return l.CanAnnounce() && slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return p.Addr() == w.own })
}

// shared reports whether a link of ours and one of another node are on one network.
func shared(ours link.Link, theirs lb.Link) bool {
	return slices.ContainsFunc(ours.Prefixes, func(p netip.Prefix) bool {
		return !p.Addr().IsLinkLocalUnicast() && slices.Contains(theirs.Prefixes, p.Masked())
	})
}

// of returns the addresses to ask for on a link: those of its own subnets first, which it surely announces.
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

// enough of the three questions that are put are answered.
const minAnswers = 2

// anyOf reports whether a question was answered well enough.
func anyOf(counts []int) heartbeat.Reply {
	out := heartbeat.NotAsked
	for _, n := range counts {
		switch {
		case n >= minAnswers:
			return heartbeat.Answered
		case n != layer2.Unasked:
			out = heartbeat.Silent
		}
	}
	return out
}

// allOf reports whether those machines that are there at all answered well enough, all in all: one of many that
// does so is chance where most frames are lost.
func allOf(counts []int) heartbeat.Reply {
	out, sum, answering := heartbeat.NotAsked, 0, 0
	for _, n := range counts {
		if n == layer2.Unasked {
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
