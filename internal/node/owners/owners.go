// Package owners finds out which addresses of this node another node owns too, and which of the two leaves it.
//
// Two nodes own an address when one of them has an old spec, or hears the others badly. An Inquirer asks the other
// speakers, by the membership and on the wire; Newer tells the plan which addresses to leave, and to which nodes:
//
//	o := owners.New(owners.Config{Node: "w1", ...})
//	go o.Run(ctx)
//	o.Kick()                            // after each plan, and each claim of another speaker
//	state.Here.Newer = o.Newer()        // addresses in contest, by the nodes that have precedence
//
// owners.go asks the membership, contest.go the wire, and contact.go keeps whether this node hears the API server. The
// package plans nothing: it reads the last plan, and makes a new one by Changed.
package owners

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

// Inquirer asks other speakers which addresses they own, and answers their questions, with the key of the membership.
// ARP and NDP cannot tell: on private VLANs, and where a switch filters, no speaker receives them from another one.
// Another node may also own an address by a newer spec, where this one does not hear the API server.
//
// Where speakers do receive each other's claims, the link itself is the faster and surer way: this node may be held
// down because of the network of the membership, by which it would ask. See contest.
type Inquirer struct {
	config Config
	// loop runs turn after each plan, and in intervals.
	loop *daemon.Loop
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

// Config configures an Inquirer.
type Config struct {
	Node   string
	Log    *slog.Logger
	Layer2 Holder
	Wire   Wire
	Peers  Peers
	// Plan returns the last plan, and Changed makes a new one. Age returns how long ago the API server was heard.
	Plan    func() plan.Plan
	Age     func() time.Duration
	Changed func()
}

// Holder is the part of layer2.Responder that an Inquirer uses.
type Holder interface {
	HandingOver() []netip.Addr
	Offered() []netip.Addr
	Owns(addrs []netip.Addr, leaves bool) []bool
	EndHandovers(addrs []netip.Addr)
}

// Wire is the part of layer2.Responder that contests use.
type Wire interface {
	Claims() []lb.Question
	Ask(ctx context.Context, questions []lb.Question, within time.Duration) []int
}

// Peers is the part of the membership that an Inquirer uses.
type Peers interface {
	// Ask asks a member: see members.Ask.
	Ask(member string, addrs []netip.Addr, leaves bool)
	// Alive returns the metadata of the members that are alive, this one included.
	Alive() map[string]lb.Member
}

// New returns an Inquirer that Run starts.
func New(c Config) *Inquirer {
	o := &Inquirer{config: c, newer: map[netip.Addr]newerOwner{}}
	o.loop = daemon.NewLoop(daemon.LoopConfig{
		Name:        "owners",
		Log:         c.Log,
		Sync:        o.turn,
		MinInterval: askInterval,
	})
	return o
}

// Run asks until ctx ends.
func (o *Inquirer) Run(ctx context.Context) error { return o.loop.Run(ctx) }

// Kick makes a turn, as after a plan or another speaker's claim. It never blocks.
func (o *Inquirer) Kick() { o.loop.Kick() }

// SetHeldDown sets whether this node is held down or at fault by its last State.
func (o *Inquirer) SetHeldDown(isHeldDown bool) { o.heldDown.Store(isHeldDown) }

// API returns what this node reports of its connection to the API server.
func (o *Inquirer) API() lb.API { return o.contact.API() }

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
func (o *Inquirer) turn(ctx context.Context) (again time.Duration, err error) {
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
func (o *Inquirer) inquire(at time.Time) {
	all, age := o.config.Peers.Alive(), o.config.Age()
	if o.contact.update(at, age, o.config.Node, all) {
		o.config.Changed()
	}

	own, others := o.contested(age)
	if len(own) == 0 {
		return
	}
	for name, m := range all {
		isCandidate := m.API == lb.APIHeard || others[name]
		if name != o.config.Node && isCandidate {
			o.config.Peers.Ask(name, share(own, o.inquiries, maxAsked), false)
		}
	}
}

// askNewOwners asks the new owner of each address that is handed over whether it has it. It reports whether there are
// such addresses.
func (o *Inquirer) askNewOwners() bool {
	handing := o.config.Layer2.HandingOver()
	planned := o.config.Plan().Owners

	byOwner := map[string][]netip.Addr{}
	for _, a := range handing {
		owner := planned.Of(a)
		byOwner[owner] = append(byOwner[owner], a)
	}
	for owner, addrs := range byOwner {
		o.config.Peers.Ask(owner, share(addrs, o.turns, maxAsked), true)
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
func (o *Inquirer) contested(age time.Duration) (own []netip.Addr, others map[string]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if age <= awayTime && len(o.newer) == 0 && len(o.config.Layer2.Offered()) == 0 {
		return nil, nil
	}

	own = slices.Collect(o.config.Plan().Announcements.Keys())
	others = map[string]bool{}
	for a, by := range o.newer {
		if time.Since(by.answeredAt) > newerTime {
			delete(o.newer, a)
			o.config.Changed()
		}
		own = append(own, a)
		others[by.node] = true
	}
	return own, others
}

// Newer returns the nodes that have addresses of this one by a newer spec.
func (o *Inquirer) Newer() map[netip.Addr]string {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make(map[netip.Addr]string, len(o.newer))
	for a, by := range o.newer {
		out[a] = by.node
	}
	return out
}

// Owns implements members.Owner.
func (o *Inquirer) Owns(addrs []netip.Addr, leaves bool) ([]bool, time.Duration) {
	return o.config.Layer2.Owns(addrs, leaves), o.config.Age()
}

// Answered implements members.Owner.
func (o *Inquirer) Answered(a members.Answer) {
	var owned []netip.Addr
	for i, owns := range a.Owns {
		if owns {
			owned = append(owned, a.Addresses[i])
		}
	}
	o.config.Layer2.EndHandovers(owned)
	if !a.Leaves && o.compare(a) {
		o.config.Changed()
	}
}

// compare adds the addresses of this node that another one has which heard the API server clearly later. It removes
// those that the other node does not have any more, or of which this node heard later. It reports whether anything
// changed.
func (o *Inquirer) compare(a members.Answer) (changed bool) {
	own, at := o.config.Age(), time.Now()
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

	o.config.Log.Warn("addresses handed over to a node that heard the API server later",
		"to", a.From, "addresses", len(yielded), "first", yielded[0],
		"heardBefore", own.Round(time.Second), "thereBefore", a.Age.Round(time.Second))
	return true
}
