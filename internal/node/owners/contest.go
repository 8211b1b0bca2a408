package owners

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Precedence returns what this node states of itself in a contest.
func (o *Inquirer) Precedence() lb.Precedence {
	return lb.Precedence{HeldDown: o.heldDown.Load(), APIAge: o.config.Age()}
}

// contest asks each speaker that claims an address of this node whether it owns the address and has precedence, and
// leaves the address to it then. It reports whether any speaker has won. A claim alone moves nothing, since any machine
// can forge it: the answer is sealed.
//
// If this node is wrong, it is held down or heard the API server earlier, and asks; otherwise it never asks. If the
// other node is wrong, it serves the address until its plan leaves it, by a handover, and this node takes it back. A
// speaker that lies has the key, with which it could declare this node dead.
func (o *Inquirer) contest(ctx context.Context) (hasWinners bool) {
	at := time.Now()
	questions := o.contests(at)
	if !o.Precedence().MayYield() {
		if o.expireContests(func(newerOwner) bool { return true }) {
			o.config.Changed()
		}
		return false
	}

	if len(questions) == 0 {
		return false
	}

	var won []lb.Question
	for i, answers := range o.config.Wire.Ask(ctx, questions, contestTime) {
		if answers > 0 {
			won = append(won, questions[i])
		}
	}
	hasNew := o.leaveTo(won, at)
	hasExpired := o.expireContests(func(by newerOwner) bool { return at.Sub(by.answeredAt) > contestAge })
	if hasNew || hasExpired {
		o.config.Changed()
	}
	return len(won) > 0
}

// contests returns the questions of this turn: to owners that won, if they did not answer recently or claim the
// address, and to some of the other speakers that claim addresses.
func (o *Inquirer) contests(at time.Time) []lb.Question {
	claimed := map[lb.Question]bool{}
	for _, q := range o.config.Wire.Claims() {
		claimed[q] = true
	}

	o.mu.Lock()
	defer o.mu.Unlock()
	winners := map[lb.Question]bool{}
	for _, by := range o.newer {
		if !by.isContest() {
			continue
		}

		isDue := at.Sub(by.answeredAt) >= inquiryInterval/2
		if isDue || claimed[by.contest] {
			winners[by.contest] = true
		}
		delete(claimed, by.contest)
	}

	byAddress := func(a, b lb.Question) int { return a.Address.Compare(b.Address) }
	again := slices.SortedFunc(maps.Keys(winners), byAddress)
	fresh := slices.SortedFunc(maps.Keys(claimed), byAddress)
	return slices.Concat(share(again, o.turns, maxAsked), share(fresh, o.turns, maxContests))
}

// leaveTo leaves addresses to the speakers that won their contests. It reports whether any is new.
func (o *Inquirer) leaveTo(won []lb.Question, at time.Time) (hasNew bool) {
	nodes := map[lb.MAC]string{}
	for name, m := range o.config.Peers.Alive() {
		for _, l := range m.Links {
			nodes[l.MAC] = name
		}
	}

	var owned, yielded []netip.Addr
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, q := range won {
		node, isKnown := nodes[q.MAC]
		if !isKnown || node == o.config.Node {
			continue
		}

		owned = append(owned, q.Address)
		if o.newer[q.Address].node != node {
			yielded = append(yielded, q.Address)
		}
		o.newer[q.Address] = newerOwner{node: node, answeredAt: at, contest: q}
	}
	o.config.Layer2.EndHandovers(owned)
	if len(yielded) == 0 {
		return false
	}

	o.config.Log.Info("addresses left to a node that owns them too and has precedence",
		"to", o.newer[yielded[0]].node, "addresses", len(yielded), "first", yielded[0], "heldDown", o.heldDown.Load())
	return true
}

// expireContests removes the owners that won contests and have expired. It reports whether there were any.
func (o *Inquirer) expireContests(hasExpired func(newerOwner) bool) (changed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := len(o.newer)
	maps.DeleteFunc(o.newer, func(_ netip.Addr, by newerOwner) bool { return by.isContest() && hasExpired(by) })
	return len(o.newer) < before
}
