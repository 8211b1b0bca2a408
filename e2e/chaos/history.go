package chaos

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// history is a record, sorted by what the rules ask for.
type history struct {
	schedule Schedule
	all      span
	// nodes has the node of each MAC.
	nodes   map[string]string
	targets []target
	// controls are the times of answers for the control address of each listener.
	controls map[string][]time.Duration
	answers  map[netip.Addr][]Entry
	fetches  map[netip.Addr][]Entry
	services map[string][]Entry
	// phases has the phase of each fault, by its index.
	phases []faultPhase
}

// target is an address that a listener asks for.
type target struct {
	address     netip.Addr
	by, service string
}

// faultPhase is when a fault happened. A mark that the record lacks is at the end of the run.
type faultPhase struct {
	Fault
	index                        int
	begins, began, ended, ready  time.Duration
	hasBegun, hasEnded, hasReady bool
}

func newHistory(s Schedule, r Record) *history {
	h := &history{
		schedule: s, nodes: map[string]string{}, controls: map[string][]time.Duration{},
		answers: map[netip.Addr][]Entry{}, fetches: map[netip.Addr][]Entry{}, services: map[string][]Entry{},
	}
	sorted := slices.SortedStableFunc(slices.Values(r), func(a, b Entry) int { return cmp.Compare(a.At, b.At) })
	control := map[netip.Addr]string{}
	for _, e := range sorted {
		switch e.What {
		case Host:
			h.nodes[e.MAC] = e.Node
		case Target:
			h.targets = append(h.targets, target{e.Address, e.By, e.Service})
		case Control:
			control[e.Address] = e.By
			h.controls[e.By] = nil
		case Stop:
			h.all.to = e.At
		}
	}
	for i, f := range s.Faults {
		to := h.all.to
		h.phases = append(h.phases, faultPhase{Fault: f, index: i, begins: to, began: to, ended: to, ready: to})
	}
	for _, e := range sorted {
		if e.At < 0 || e.At > h.all.to {
			continue
		}
		switch e.What {
		case Answer:
			h.answers[e.Address] = append(h.answers[e.Address], e)
			if by := control[e.Address]; by == e.By && by != "" {
				h.controls[by] = append(h.controls[by], e.At)
			}
		case Fetch:
			h.fetches[e.Address] = append(h.fetches[e.Address], e)
		case Service:
			h.services[e.Service] = append(h.services[e.Service], e)
		case Begins, Began, Ended, Ready:
			if e.Fault >= 0 && e.Fault < len(h.phases) {
				h.phases[e.Fault].mark(e)
			}
		}
	}
	return h
}

func (p *faultPhase) mark(e Entry) {
	switch e.What {
	case Begins:
		p.begins = e.At
	case Began:
		p.began, p.hasBegun = e.At, true
	case Ended:
		p.ended, p.hasEnded = e.At, true
	case Ready:
		p.ready, p.hasReady = e.At, true
	}
}

// node returns the node with a MAC, or the MAC if no node has it.
func (h *history) node(mac string) string {
	if node, ok := h.nodes[mac]; ok {
		return node
	}
	return mac
}

// times returns when answers for an address were received.
func (h *history) times(address netip.Addr) []time.Duration {
	var out []time.Duration
	for _, e := range h.answers[address] {
		out = append(out, e.At)
	}
	return out
}

// owned returns when each node answered for an address. Answers of a node belong together unless they pause for longer
// than silence.
func (h *history) owned(address netip.Addr) map[string][]span {
	out := map[string][]span{}
	for _, e := range h.answers[address] {
		node := h.node(e.MAC)
		spans := out[node]
		last := len(spans) - 1
		if last >= 0 && e.At-spans[last].to <= silence {
			spans[last].to = e.At
			continue
		}
		out[node] = append(spans, span{e.At, e.At})
	}
	return out
}

// apart returns when two nodes may not hear each other: there is no link on which both of them work.
func (h *history) apart(a, b string) []span {
	out := []span{h.all}
	for _, link := range h.schedule.Links {
		var broken []span
		for _, p := range h.phases {
			if p.breaks(a, link) || p.breaks(b, link) {
				broken = append(broken, span{p.begins, p.ended + meeting})
			}
		}
		out = intersect(out, merge(broken))
	}
	return out
}

// unfit returns when a fault kept a node from working on any of its links, or had done so a moment ago.
func (h *history) unfit(node string) []span {
	var out []span
	for _, p := range h.phases {
		if slices.ContainsFunc(h.schedule.Links, func(link string) bool { return p.breaks(node, link) }) {
			out = append(out, span{p.begins, p.ready + recovery})
		}
	}
	return merge(out)
}

// deaf returns when a listener did not hear the machine that always answers, such as when it had no processor.
func (h *history) deaf(listener string) []span { return gaps(h.controls[listener], h.all, deafness) }

// cutOff reports whether a gap began because its owner lost its power or its cable while nothing else was broken.
func (h *history) cutOff(address netip.Addr, gap span) bool {
	owner := ""
	for _, e := range h.answers[address] {
		if e.At <= gap.from {
			owner = h.node(e.MAC)
		}
	}
	cut := false
	for _, p := range h.phases {
		switch {
		case p.cuts(owner) && p.begins-askedEvery <= gap.from && gap.from <= p.began+askedEvery:
			cut = true
		case p.begins <= gap.to && gap.from <= p.ready+recovery:
			return false
		}
	}
	return cut
}

// during returns the faults that were in force in a span, or just before it.
func (h *history) during(s span) []string {
	var out []string
	for _, p := range h.phases {
		if p.begins <= s.to && s.from <= p.ready+recovery {
			out = append(out, p.describe())
		}
	}
	return out
}
