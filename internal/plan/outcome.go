package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// IsAnnounced reports whether all addresses are announced.
func (o Outcome) IsAnnounced() bool {
	return o.Reason == lb.Announced || o.Reason == lb.PortNotServed
}

// WithSessions adds to an outcome of BGP what the plan cannot know: whether its peers have sessions. It reports false
// while no session is established and none has failed: there is nothing to write yet.
func (o Outcome) WithSessions(node string, sessions []lb.Session) (Outcome, bool) {
	if !o.IsAnnounced() || len(o.Peers) == 0 {
		return o, true
	}

	var with, without []string
	failed := false

	for _, s := range sessions {
		switch {
		case !slices.Contains(o.Peers, s.Peer):
		case s.State == lb.Established:
			with = append(with, s.Peer)
		default:
			without = append(without, s.Peer)
			failed = failed || s.LastError != ""
		}
	}

	switch {
	case len(with) > 0:
		to := " to " + lb.SomeOf(with)
		if len(o.Nodes) > 1 { // others may have other peers
			to = " (" + node + to + ")"
		}
		o.Message += to
	case failed:
		o.Reason = lb.NoSession
		// The error itself is not here: it may change often, and each Service would be written then.
		o.Message = "no session is established with " + lb.SomeOf(without)
	default:
		return o, false
	}

	return o, true
}

// OnLinks adds to an outcome of layer 2 what only the links know, as a sentence: on which links this node announces an
// address, or why it does not. states are of the addresses that this node owns, in order. record names who announces
// what, for machines. known is false while this node still probes for an address: there is nothing to write yet.
func (o Outcome) OnLinks(
	node string,
	states []lb.AddressState,
) (out Outcome, record string, known bool) {
	var sentences, entries []string
	for _, a := range o.Announcers {
		reason, answered := lb.Announced, true
		sentence := announcedBy(a, "")
		if a.Node == node {
			state, set := lb.StateOf(states, a.Address)
			if !set || state.Pending {
				return o, "", false
			}
			reason, sentence = announcedHere(a, state)
			answered = state.Answered
		}
		sentences = append(sentences, sentence)
		if answered {
			entry := a.Address.String() + "=" + a.Node
			entries = append(entries, entry)
		}
		if reason != lb.Announced {
			o.Reason = reason
		}
	}

	announced := strings.Join(sentences, ", ")
	switch {
	case o.Message == "":
		o.Message = announced
	case announced != "":
		o.Message = announced + "; the rest waits: " + o.Message
	}

	return o, strings.Join(entries, ","), true
}

// announcedBy returns the sentence on an address that is announced; links says on which links, if that is known.
func announcedBy(a Announcer, links string) string {
	out := fmt.Sprintf("%s by node %s%s", a.Address, a.Node, links)
	if a.Remark != "" {
		out += " (" + a.Remark + ")"
	}
	return out
}

// announcedHere returns lb.Announced, or why this node does not announce an address that it owns on all links; and the
// sentence.
func announcedHere(a Announcer, s lb.AddressState) (lb.Reason, string) {
	switch {
	case len(s.Conflicts) > 0 && !s.Answered:
		var users []string
		for _, c := range s.Conflicts {
			user := fmt.Sprintf("%s on %s", c.MAC, c.Link)
			users = append(users, user)
		}
		return lb.AddressConflict, fmt.Sprintf("%s is in use by %s, seen by node %s",
			a.Address, strings.Join(users, " and "), a.Node)
	case len(s.Links) == 0 && len(s.Refused) > 0:
		return lb.SocketRefused, fmt.Sprintf("%s is to be announced from node %s, which cannot answer for it: %s",
			a.Address, a.Node, strings.Join(s.Refused, ", "))
	case len(s.Links) == 0:
		return lb.NoLink, fmt.Sprintf("%s is to be announced from node %s, which has no link to do so",
			a.Address, a.Node)
	}

	reason := lb.Announced
	links := " on " + strings.Join(s.Links, " and ")

	for _, c := range s.Conflicts {
		if slices.Contains(s.Links, c.Link) {
			links += fmt.Sprintf(" (%s on %s claims it too)", c.MAC, c.Link)
		} else {
			reason = lb.AddressConflict
			links += fmt.Sprintf(" (not on %s, where it is in use by %s)", c.Link, c.MAC)
		}
	}

	return reason, announcedBy(a, links)
}

// Conflicts returns a sentence for each address that this node announces although another machine claims it.
func (o Outcome) Conflicts(node string, states []lb.AddressState) []string {
	var out []string
	for _, a := range o.Announcers {
		state, _ := lb.StateOf(states, a.Address)
		if a.Node != node || !state.Answered {
			continue
		}
		for _, c := range state.Conflicts {
			sentence := fmt.Sprintf(
				"%s on %s claims %s, which node %s announces",
				c.MAC,
				c.Link,
				a.Address,
				node,
			)
			out = append(out, sentence)
		}
	}

	return out
}
