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
	mostAsked = 2
)

// Asker puts questions to machines on a link: layer2.Responder.
type Asker interface {
	Ask(ctx context.Context, questions []layer2.Question, within time.Duration) []int
	Foreign(linkName string, n int) []layer2.Question
}

// Wire asks a node that fell silent whether it still answers for what it announces, by ARP and
// Neighbor Discovery at its own MAC (RFC 1122 section 2.3.2.1, RFC 4861 section 7.3), and machines
// that are no speakers whether this node's link works at all.
type Wire struct {
	asker Asker
	links func() []link.Link

	mu sync.Mutex
	// members are what the speakers told of themselves, announced some of what each node announces, or
	// did when it announced anything.
	members   map[string]lb.Member
	announced map[string][]netip.Addr
}

// NewWire returns a Wire that knows of no node yet.
func NewWire(asker Asker, links func() []link.Link) *Wire {
	return &Wire{asker: asker, links: links, announced: map[string][]netip.Addr{}}
}

// Set tells what the speakers told of themselves, and which node announces each address by layer 2.
func (w *Wire) Set(members map[string]lb.Member, owners map[netip.Addr]string) {
	announced := map[string][]netip.Addr{}
	for a, node := range owners {
		announced[node] = append(announced[node], a)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.members = members
	for node := range w.announced {
		if _, known := members[node]; !known {
			delete(w.announced, node)
		}
	}
	for node, addresses := range announced {
		w.announced[node] = addresses
	}
}

// Ask asks about one node.
func (w *Wire) Ask(node string) heartbeat.Answer {
	own, foreign := w.questions(node)
	counts := w.asker.Ask(context.Background(), append(slices.Clone(own), foreign...), wireTime)
	return heartbeat.Answer{Node: anyOf(counts[:len(own)]), Foreign: allOf(counts[len(own):])}
}

// questions returns what the node is asked, and what foreign machines are on the same links.
func (w *Wire) questions(node string) (own, foreign []layer2.Question) {
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
			for _, a := range of(announced, t) {
				own = append(own, layer2.Question{Link: l.Name, MAC: link.MAC(t.MAC), Address: a})
			}
			foreign = append(foreign, w.asker.Foreign(l.Name, mostAsked)...)
			break
		}
	}
	return own, foreign
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
		if len(out) == mostAsked {
			break
		}
		if within(a) {
			out = append(out, a)
		} else if len(others) < mostAsked {
			others = append(others, a)
		}
	}
	return append(out, others[:min(len(others), mostAsked-len(out))]...)
}

// enough of the three questions that are put are answered.
const enough = 2

// anyOf reports whether a question was answered well enough.
func anyOf(counts []int) heartbeat.Reply {
	out := heartbeat.NotAsked
	for _, n := range counts {
		switch {
		case n >= enough:
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
	if answering > 0 && sum >= enough*answering {
		out = heartbeat.Answered
	}
	return out
}
