package main

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/members"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

const (
	// askInterval is how often a node asks the new owners of the addresses that it hands over. inquiryInterval is how
	// often an owner that is away from the API server asks all other nodes.
	askInterval     = 200 * time.Millisecond
	inquiryInterval = time.Second
	// maxAsked is how many addresses one member is asked about at a time. The others follow in later questions.
	maxAsked = 2048
	// maxContests is how many claims of speakers are checked by contests at a time. Any machine on the link can forge
	// claims, and three frames go out for each.
	maxContests = 100
	// awayTime is how long a node has not heard the API server when its spec may be old, and by how much another node
	// must have heard it later.
	awayTime = lb.APIMargin
	// newerTime is how long a newer owner counts without another answer from it.
	newerTime = 10 * time.Second
)

const (
	// contestTime is how long the answers to contests may take.
	contestTime = 50 * time.Millisecond
	// contestAge is how long the answer to a contest counts. Until then the owner is asked again a few times.
	contestAge = 3 * inquiryInterval
)

// owners asks other speakers which addresses they own, and answers their questions, with the key of the membership.
// ARP and NDP cannot tell: on private VLANs, and where a switch filters, no speaker receives them from another one.
// Another node may also own an address by a newer spec, where this one does not hear the API server.
//
// Where speakers do receive each other's claims, the link itself is the faster and surer way: this node may be held
// down because of the network of the membership, by which it would ask. See contest.
type owners struct {
	node   string
	log    *slog.Logger
	layer2 addressHolder
	wire   contestAsker
	peers  ownerPeers
	// loop runs turn after each plan, and in intervals.
	loop *daemon.Loop
	// plan returns the last plan, and kick makes a new one. age returns how long ago the API server was heard.
	plan func() plan.Plan
	age  func() time.Duration
	kick func()
	// heldDown reports whether this node is held down or at fault by its last State.
	heldDown atomic.Bool

	// turns and inquiries count the questions: each of them is about other addresses. inquiredAt is when the last
	// inquiry was due.
	turns, inquiries int
	inquiredAt       time.Time
	contact          contact

	mu sync.Mutex
	// newer has the addresses of this node that another node has too.
	newer map[netip.Addr]newerOwner
}

// addressHolder is the part of layer2.Responder that owners uses.
type addressHolder interface {
	HandingOver() []netip.Addr
	Offered() []netip.Addr
	Owns(addrs []netip.Addr, leaves bool) []bool
	EndHandovers(addrs []netip.Addr)
}

// contestAsker is the part of layer2.Responder that contests use.
type contestAsker interface {
	Claims() []lb.Question
	Ask(ctx context.Context, questions []lb.Question, within time.Duration) []int
}

// ownerPeers is the part of the membership that owners uses.
type ownerPeers interface {
	// ask asks a member: see members.Ask.
	ask(member string, addrs []netip.Addr, leaves bool)
	// alive returns the metadata of the members that are alive, this one included.
	alive() map[string]lb.Member
}

// newerOwner is another node that has an address of this one, and heard the API server later or won the contest.
type newerOwner struct {
	node string
	// answeredAt is when the node last answered that it has the address.
	answeredAt time.Time
	// contest is the question that the node answered; zero if it answered the membership's.
	contest lb.Question
}

// isContest reports whether the node won a contest.
func (n newerOwner) isContest() bool { return n.contest.Contest }

// turn asks what is due, and returns when to ask again.
func (o *owners) turn(ctx context.Context) (again time.Duration, err error) {
	o.turns++
	again = inquiryInterval
	isHandingOver := o.askNewOwners()
	if o.contest(ctx) || isHandingOver {
		again = askInterval
	}

	at := time.Now()
	if at.Sub(o.inquiredAt) >= inquiryInterval {
		o.inquiredAt = at
		o.inquiries++
		o.inquire(at)
	}
	return again, nil
}

// inquire asks other nodes whether they own what this node announces, if this node may have an old spec.
func (o *owners) inquire(at time.Time) {
	all, age := o.peers.alive(), o.age()
	if o.contact.update(at, age, o.node, all) {
		o.kick()
	}

	own, others := o.contested(age)
	if len(own) == 0 {
		return
	}
	for name, m := range all {
		isCandidate := m.API == lb.APIHeard || others[name]
		if name != o.node && isCandidate {
			o.peers.ask(name, share(own, o.inquiries, maxAsked), false)
		}
	}
}

// askNewOwners asks the new owner of each address that is handed over whether it has it. It reports whether there are
// such addresses.
func (o *owners) askNewOwners() bool {
	handing := o.layer2.HandingOver()
	planned := o.plan().Owners

	byOwner := map[string][]netip.Addr{}
	for _, a := range handing {
		owner := planned.Of(a)
		byOwner[owner] = append(byOwner[owner], a)
	}
	for owner, addrs := range byOwner {
		o.peers.ask(owner, share(addrs, o.turns, maxAsked), true)
	}
	return len(handing) > 0
}

// share returns a limited number of what there is to ask about: the next ones in each turn.
func share[T any](all []T, turn, limit int) []T {
	if len(all) <= limit {
		return all
	}
	start := turn * limit % len(all)
	out := all[start:min(start+limit, len(all))]
	return append(out[:len(out):len(out)], all[:limit-len(out)]...)
}

// contested returns the addresses of this node that other nodes may own, by a newer spec or because this node offered
// them. Others are the nodes that answered that they do.
func (o *owners) contested(age time.Duration) (own []netip.Addr, others map[string]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if age <= awayTime && len(o.newer) == 0 && len(o.layer2.Offered()) == 0 {
		return nil, nil
	}

	own = slices.Collect(o.plan().Announcements.Keys())
	others = map[string]bool{}
	for a, by := range o.newer {
		if time.Since(by.answeredAt) > newerTime {
			delete(o.newer, a)
			o.kick()
		}
		own = append(own, a)
		others[by.node] = true
	}
	return own, others
}

// newerOwners returns the nodes that have addresses of this one by a newer spec.
func (o *owners) newerOwners() map[netip.Addr]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make(map[netip.Addr]string, len(o.newer))
	for a, by := range o.newer {
		out[a] = by.node
	}
	return out
}

// Owns implements members.Owner.
func (o *owners) Owns(addrs []netip.Addr, leaves bool) ([]bool, time.Duration) {
	return o.layer2.Owns(addrs, leaves), o.age()
}

// Answered implements members.Owner.
func (o *owners) Answered(a members.Answer) {
	var owned []netip.Addr
	for i, owns := range a.Owns {
		if owns {
			owned = append(owned, a.Addresses[i])
		}
	}
	o.layer2.EndHandovers(owned)
	if !a.Leaves && o.compare(a) {
		o.kick()
	}
}

// compare adds the addresses of this node that another one has which heard the API server clearly later. It removes
// those that the other node does not have any more, or of which this node heard later. It reports whether anything
// changed.
func (o *owners) compare(a members.Answer) (changed bool) {
	own, at := o.age(), time.Now()
	var yielded []netip.Addr

	o.mu.Lock()
	defer o.mu.Unlock()
	for i, addr := range a.Addresses {
		isKnown := o.newer[addr].node == a.From
		hasEnded := !a.Owns[i] || a.Age > own+awayTime
		switch {
		case isKnown && hasEnded:
			delete(o.newer, addr)
			changed = true
		case !a.Owns[i]:
		case isKnown:
			if !o.newer[addr].isContest() {
				o.newer[addr] = newerOwner{node: a.From, answeredAt: at}
			}
		case own > a.Age+awayTime:
			o.newer[addr] = newerOwner{node: a.From, answeredAt: at}
			yielded = append(yielded, addr)
		}
	}
	if len(yielded) == 0 {
		return changed
	}

	o.log.Warn("addresses handed over to a node that heard the API server later",
		"to", a.From, "addresses", len(yielded), "first", yielded[0],
		"heardBefore", own.Round(time.Second), "thereBefore", a.Age.Round(time.Second))
	return true
}
