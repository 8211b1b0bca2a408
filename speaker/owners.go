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
	// askInterval is how often a node asks the new owners of the addresses that it hands over, and inquiryInterval how
	// often an owner that is away from the API server asks all others.
	askInterval     = 200 * time.Millisecond
	inquiryInterval = time.Second
	// maxAsked is how many addresses one member is asked about at a time; all others have their turn.
	maxAsked = 2048
	// awayTime is how long the API server was not heard by a node that may have an old spec, and by how much another
	// one must have heard it later.
	awayTime = 5 * time.Second
	// newerTime is how long a newer owner counts that does not say again that it is.
	newerTime = 10 * time.Second
)

// owners asks other speakers which addresses they own, with the key of the membership, and answers them: on private
// VLANs, and where a switch filters, no speaker hears the ARP or NDP of another, and who does not hear the API server
// may own what another node owns by a newer spec.
type owners struct {
	node   string
	log    *slog.Logger
	layer2 interface {
		Handing() []netip.Addr
		Offered() []netip.Addr
		Owns(addrs []netip.Addr, leaves bool) []bool
		Owned(addrs []netip.Addr)
	}
	// ask asks a member: see members.Ask. members returns the metadata of those that live, this one included.
	ask     func(member string, addrs []netip.Addr, leaves bool)
	members func() map[string]lb.Member
	// plan returns the last plan, age how long ago the API server was heard; kick makes a new plan.
	plan func() plan.Plan
	age  func() time.Duration
	kick func()
	// loop runs turn when there is a plan, and in intervals.
	loop *daemon.Loop
	// turns and inquiries count the questions, so that addresses take turns; inquired is when the last inquiry was due.
	turns, inquiries int
	inquired         time.Time
	contact          contact

	mu    sync.Mutex
	newer map[netip.Addr]newer
}

// newer is another node that has an address of this one, and heard the API server later.
type newer struct {
	node string
	// said is when it said so last.
	said time.Time
}

// turn asks what is due, and returns when to ask again.
func (o *owners) turn(context.Context) (again time.Duration, err error) {
	o.turns++
	if again = inquiryInterval; o.leave() {
		again = askInterval
	}
	now := time.Now()
	if now.Sub(o.inquired) < inquiryInterval {
		return again, nil
	}
	o.inquired = now
	o.inquiries++
	all, age := o.members(), o.age()
	if o.contact.follow(now, age, o.node, all) {
		o.kick()
	}
	own, others := o.doubtful(age)
	for name, m := range all {
		if len(own) > 0 && name != o.node && (m.API == lb.APIHeard || others[name]) {
			o.ask(name, share(own, o.inquiries), false)
		}
	}
	return again, nil
}

// leave asks the new owner of each address that is handed over whether it has it, and reports whether there are any.
func (o *owners) leave() bool {
	handing := o.layer2.Handing()
	to, byOwner := o.plan().Owners, map[string][]netip.Addr{}
	for _, a := range handing {
		byOwner[to.Of(a)] = append(byOwner[to.Of(a)], a)
	}
	for owner, addrs := range byOwner {
		o.ask(owner, share(addrs, o.turns), true)
	}
	return len(handing) > 0
}

// share returns maxAsked of the addresses, other ones in each turn.
func share(addrs []netip.Addr, turn int) []netip.Addr {
	if len(addrs) <= maxAsked {
		return addrs
	}
	start := turn * maxAsked % len(addrs)
	out := addrs[start:min(start+maxAsked, len(addrs))]
	return append(out[:len(out):len(out)], addrs[:maxAsked-len(out)]...)
}

// doubtful returns the addresses that other nodes may have by a newer spec, or because this node offered them, or have,
// and these.
func (o *owners) doubtful(age time.Duration) (own []netip.Addr, others map[string]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if age <= awayTime && len(o.newer) == 0 && len(o.layer2.Offered()) == 0 {
		return nil, nil
	}
	own = slices.Collect(o.plan().Announcements.Keys())
	others = map[string]bool{}
	for a, by := range o.newer {
		if time.Since(by.said) > newerTime {
			delete(o.newer, a)
			o.kick()
		}
		own, others[by.node] = append(own, a), true
	}
	return own, others
}

// newerOwners returns which other nodes have addresses of this one by a newer spec.
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
	o.layer2.Owned(owned)
	if !a.Leaves && o.compare(a) {
		o.kick()
	}
}

// compare notes which addresses of this node another one has that heard the API server clearly later, and forgets those
// that it does not have any more, or that this node heard of later. It reports whether anything changed.
func (o *owners) compare(a members.Answer) (changed bool) {
	own, now := o.age(), time.Now()
	var left []netip.Addr
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, addr := range a.Addresses {
		known := o.newer[addr].node == a.From
		switch {
		case known && (!a.Owns[i] || a.Age > own+awayTime):
			delete(o.newer, addr)
			changed = true
		case !a.Owns[i]:
		case known:
			o.newer[addr] = newer{a.From, now}
		case own > a.Age+awayTime:
			o.newer[addr] = newer{a.From, now}
			left = append(left, addr)
		}
	}
	if len(left) > 0 {
		o.log.Warn(
			"addresses handed over to a node that heard the API server later",
			"to",
			a.From,
			"addresses",
			len(left),
			"first",
			left[0],
			"heardBefore",
			own.Round(time.Second),
			"thereBefore",
			a.Age.Round(time.Second),
		)
	}
	return changed || len(left) > 0
}

const (
	// behindTime is how long a node is away from the API server, while at least half of the speakers hear it, until it
	// ranks behind, and backTime how long it goes on to do so when it is back: one that comes and goes moves its
	// addresses once.
	behindTime = 30 * time.Second
	backTime   = 5 * time.Minute
)

// contact is what this node says of its API server.
type contact struct {
	says atomic.Uint32
	// since is when the node was away alone, or back.
	since time.Time
	away  bool
}

// API returns what this node says of its API server.
func (c *contact) API() lb.API { return lb.API(c.says.Load()) }

// follow finds what to say, and reports whether that is new.
func (c *contact) follow(now time.Time, age time.Duration, node string, all map[string]lb.Member) (changed bool) {
	heard := 0
	for name, m := range all {
		if name != node && m.API == lb.APIHeard {
			heard++
		}
	}
	before, away, most := c.API(), age > awayTime, 2*heard >= len(all)
	if c.away != away || !most {
		c.away, c.since = away, now
	}
	next, passed := lb.APIHeard, now.Sub(c.since)
	switch {
	case most &&
		away &&
		(before == lb.APIBehind ||
			passed >= behindTime), most &&
		!away &&
		before == lb.APIBehind &&
		passed < backTime:
		next = lb.APIBehind
	case away:
		next = lb.APIAway
	}
	c.says.Store(uint32(next))
	return next != before
}
