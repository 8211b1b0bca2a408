package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// What the rules promise.
const (
	maxTwoOwners = 2 * time.Second
	maxNoOwner   = 3 * time.Second
	// maxAfterCut applies in place of maxNoOwner when the owner lost its power or its cable.
	maxAfterCut = 500 * time.Millisecond
	// calm is the time from the last fault until all must be settled. The record must go on for final.
	calm, final = 40 * time.Second, 5 * time.Second
	// maxHandover is how long the former owner of an address may answer in the final time.
	maxHandover = 500 * time.Millisecond
)

// What the rules leave to the nodes, and to the listeners.
const (
	// meeting is the time that two nodes have to hear each other after a fault.
	meeting = time.Second
	// recovery is the time from the end of a fault until its node counts as a node that works.
	recovery = 5 * time.Second
	// silence is the pause after which a node that answered no longer owns the address.
	silence = time.Second
	// deafness is the pause of the control address after which its listener counts as deaf.
	deafness = 300 * time.Millisecond
	// askedEvery is more than the time between two questions for an address.
	askedEvery = 200 * time.Millisecond
)

// Rule is a promise that a record can break.
type Rule string

// The rules.
const (
	TwoOwners  Rule = "two owners"
	NoOwner    Rule = "no owner"
	Unsettled  Rule = "unsettled"
	Renumbered Rule = "renumbered"
	Incomplete Rule = "incomplete"
)

// Violation is one place of a record that breaks a rule.
type Violation struct {
	Rule Rule
	// Address is its zero value where the rule is about none.
	Address  netip.Addr
	From, To time.Duration
	// Detail says what the record shows.
	Detail string
	// Faults were in force at that time, or had just ended.
	Faults []string
}

// String returns the violation as a line of text.
func (v Violation) String() string {
	text := string(v.Rule)
	if v.Address.IsValid() {
		text += " of " + v.Address.String()
	}
	text += fmt.Sprintf(", %s to %s: %s", round(v.From), round(v.To), v.Detail)
	if len(v.Faults) > 0 {
		text += "; faults: " + strings.Join(v.Faults, "; ")
	}
	return text
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

// Check returns where a record breaks the rules, sorted by time.
func Check(s Schedule, r Record) []Violation {
	h := newHistory(s, r)
	out := h.incomplete()
	for _, t := range h.targets {
		out = append(out, h.twoOwners(t)...)
		out = append(out, h.noOwner(t)...)
		out = append(out, h.unsettled(t)...)
	}
	out = append(out, h.renumbered()...)
	slices.SortStableFunc(out, func(a, b Violation) int { return cmp.Compare(a.From, b.From) })
	return out
}

// twoOwners finds addresses for which two nodes answered that heard each other.
func (h *history) twoOwners(t target) []Violation {
	var out []Violation
	owned := h.owned(t.address)
	nodes := slices.Sorted(maps.Keys(owned))
	for i, a := range nodes {
		for _, b := range nodes[i+1:] {
			both := subtract(intersect(owned[a], owned[b]), h.apart(a, b))
			for _, s := range both {
				if s.length() > maxTwoOwners {
					detail := fmt.Sprintf("%s and %s answer for %s, at most %s", a, b, round(s.length()), maxTwoOwners)
					out = append(out, h.violation(TwoOwners, t.address, s, detail))
				}
			}
		}
	}
	return out
}

// noOwner finds addresses for which no node answered while there was a node that worked all the time.
func (h *history) noOwner(t target) []Violation {
	var out []Violation
	for _, gap := range gaps(h.times(t.address), h.all, maxAfterCut) {
		limit := maxNoOwner
		if h.cutOff(t.address, gap) {
			limit = maxAfterCut
		}
		heard := subtract([]span{gap}, h.deaf(t.by))
		var worst span
		fit := ""
		for _, node := range h.schedule.Nodes {
			s := longest(subtract(heard, h.unfit(node)))
			if s.length() > worst.length() {
				worst, fit = s, node
			}
		}
		if worst.length() > limit {
			detail := fmt.Sprintf("no answer for %s while %s works, at most %s", round(worst.length()), fit, limit)
			out = append(out, h.violation(NoOwner, t.address, worst, detail))
		}
	}
	return out
}

// unsettled finds addresses that do not have one owner, or are not served, some time after the last fault.
func (h *history) unsettled(t target) []Violation {
	s := h.finalTime()
	seen := map[string][]span{}
	for node, spans := range h.owned(t.address) {
		if in := intersect(spans, []span{s}); len(in) > 0 {
			seen[node] = in
		}
	}
	nodes := slices.Sorted(maps.Keys(seen))
	if len(nodes) == 0 {
		return []Violation{h.violation(Unsettled, t.address, s, "no node answers")}
	}
	var out []Violation
	for i, a := range nodes {
		for _, b := range nodes[i+1:] {
			if longest(intersect(seen[a], seen[b])).length() > maxHandover {
				out = append(out, h.violation(Unsettled, t.address, s, a+" and "+b+" answer"))
			}
		}
	}
	served := func(e Entry) bool { return e.Error == "" && s.from <= e.At && e.At <= s.to }
	if !slices.ContainsFunc(h.fetches[t.address], served) {
		out = append(out, h.violation(Unsettled, t.address, s, "it is not served"))
	}
	return out
}

// finalTime is the time in which all must be settled.
func (h *history) finalTime() span {
	from := calm
	for _, p := range h.phases {
		from = max(from, p.ready+calm)
	}
	return span{from, from + final}
}

// renumbered finds Services that had other addresses than in the beginning.
func (h *history) renumbered() []Violation {
	var out []Violation
	for _, name := range slices.Sorted(maps.Keys(h.services)) {
		entries := h.services[name]
		for _, e := range entries[1:] {
			if !slices.Equal(e.Addresses, entries[0].Addresses) {
				detail := fmt.Sprintf("Service %s has %v and had %v", name, e.Addresses, entries[0].Addresses)
				out = append(out, h.violation(Renumbered, netip.Addr{}, span{e.At, e.At}, detail))
				break
			}
		}
	}
	return out
}

// incomplete finds what the record lacks: without it the other rules show nothing.
func (h *history) incomplete() []Violation {
	var out []Violation
	lacks := func(format string, args ...any) {
		out = append(out, h.violation(Incomplete, netip.Addr{}, h.all, fmt.Sprintf(format, args...)))
	}
	if len(h.targets) == 0 {
		lacks("no address was asked for")
	}
	if end := h.finalTime().to; h.all.to < end {
		lacks("it ends at %s, before %s", round(h.all.to), round(end))
	}
	for _, p := range h.phases {
		if !p.hasBegun || !p.hasEnded || !p.hasReady {
			lacks("%s did not begin, end and recover", p.describe())
		}
	}
	listeners := map[string]bool{}
	for _, t := range h.targets {
		listeners[t.by] = true
		if len(h.fetches[t.address]) == 0 {
			lacks("%s was never fetched", t.address)
		}
		reads := h.services[t.service]
		if len(reads) == 0 || reads[len(reads)-1].At < h.finalTime().from {
			lacks("the addresses of Service %s were not read to the end", t.service)
		}
	}
	for _, by := range slices.Sorted(maps.Keys(listeners)) {
		if len(h.controls[by]) == 0 {
			lacks("%s did not hear its control address", by)
		}
	}
	return out
}

func (h *history) violation(rule Rule, address netip.Addr, s span, detail string) Violation {
	return Violation{Rule: rule, Address: address, From: s.from, To: s.to, Detail: detail, Faults: h.during(s)}
}

func (p faultPhase) describe() string {
	return fmt.Sprintf("#%d %s, %s to %s", p.index, p.Fault, round(p.begins), round(p.ready))
}
