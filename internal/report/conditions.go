package report

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// conditions returns the conditions of a Service's announcement of which this node is the writer: those that it is to have, and
// the types of those that it is not to have.
func conditions(node string, s *corev1.Service, v plan.Verdict, sessions []lb.Session, problems []lb.Problem) (out []metav1.Condition, remove []string) {
	exists := func(kind string) bool { return meta.FindStatusCondition(s.Status.Conditions, kind) != nil }
	// That no advertisement selects a Service stands in one condition only, that of layer 2. A Service without an
	// address gets no condition: the controller says why, and a write here would conflict with its own.
	unselected := !v.BGP.Selected && v.L2.Reason != lb.NoAddress
	if v.L2.Writer && (v.L2.Selected || unselected || exists(v1beta1.ConditionAnnouncedL2)) {
		out = append(out, condition(v1beta1.ConditionAnnouncedL2, v.L2))
	}
	if o, known := withSessions(node, v.BGP, sessions); known && o.Writer && (o.Selected || exists(v1beta1.ConditionAnnouncedBGP)) {
		out = append(out, condition(v1beta1.ConditionAnnouncedBGP, o))
	}
	if writer := v.L2.Selected && v.L2.Writer || !v.L2.Selected && v.BGP.Writer; !writer {
		return out, nil
	}
	i := slices.IndexFunc(problems, func(p lb.Problem) bool { return p.Reason == lb.FilterNotEnforceable || p.Reason == lb.FilterNotInForce })
	if i < 0 || !v.Ranges {
		return out, []string{v1beta1.ConditionFilterEnforced}
	}
	return append(out, metav1.Condition{
		Type: v1beta1.ConditionFilterEnforced, Status: metav1.ConditionFalse, Reason: string(problems[i].Reason),
		// What is wrong with the node is not here: its SpeakerState has it once, and each Service would be written when it changes.
		Message: fmt.Sprintf("node %s does not enforce the source ranges: status.problems of its SpeakerState says why", problems[i].Object.Name),
	}), nil
}

func condition(kind string, o plan.Outcome) metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: string(o.Reason), Message: k8s.Bounded(o.Message)}
	if o.Reason == lb.Announced {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// withSessions adds to an outcome of BGP what the plan cannot know: whether its peers have sessions. It reports false
// while no session is established and none has failed: there is nothing to write yet.
func withSessions(node string, o plan.Outcome, sessions []lb.Session) (plan.Outcome, bool) {
	if o.Reason != lb.Announced || len(o.Peers) == 0 {
		return o, true
	}
	var with, without []string
	failed := false
	for _, s := range sessions {
		switch {
		case !slices.Contains(o.Peers, s.Peer):
		case up(s):
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
		o.Message = "no session is established with " + lb.SomeOf(without) + ": the condition " + v1beta1.ConditionEstablished + " of each BGPPeer says why"
	default:
		return o, false
	}
	return o, true
}

// announced has the layer 2 state of each address that this node owns.
type announced map[netip.Addr]lb.AddressState

func announcedOf(s lb.Layer2) announced {
	out := make(announced, len(s.Addresses))
	for _, a := range s.Addresses {
		out[a.Address] = a
	}
	return out
}

// complete adds to an outcome of layer 2 what only the links know, as a sentence: on which links this node announces
// an address, or why it does not. record is the message of ConditionAnnouncers. known is false while this node still
// probes for an address: there is nothing to write yet.
func (is announced) complete(o plan.Outcome, node string) (out plan.Outcome, record string, known bool) {
	var sentences, entries []string
	for _, a := range o.Announcers {
		reason, sentence, answered := lb.Announced, announcedBy(a, ""), true
		if a.Node == node {
			state, set := is[a.Address]
			if !set || state.Pending {
				return o, "", false
			}
			reason, sentence = announcedHere(a, state)
			answered = state.Answered
		}
		sentences = append(sentences, sentence)
		if answered {
			entries = append(entries, a.Address.String()+"="+a.Node)
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
func announcedBy(a plan.Announcer, links string) string {
	out := fmt.Sprintf("%s by node %s%s", a.Address, a.Node, links)
	if a.Remark != "" {
		out += " (" + a.Remark + ")"
	}
	return out
}

// announcedHere returns lb.Announced, or why this node does not announce an address that it owns on all links; and the sentence.
func announcedHere(a plan.Announcer, is lb.AddressState) (lb.Reason, string) {
	switch {
	case len(is.Conflicts) > 0 && !is.Answered:
		var users []string
		for _, c := range is.Conflicts {
			users = append(users, fmt.Sprintf("%s on %s", c.MAC, c.Link))
		}
		return lb.AddressConflict, fmt.Sprintf("%s is in use by %s, seen by node %s: free it there, or ask for another address",
			a.Address, strings.Join(users, " and "), a.Node)
	case len(is.Links) == 0 && len(is.Refused) > 0:
		return lb.SocketRefused, fmt.Sprintf("%s is to be announced from node %s, which cannot answer for it: %s",
			a.Address, a.Node, strings.Join(is.Refused, ", "))
	case len(is.Links) == 0:
		return lb.NoLink, fmt.Sprintf("%s is to be announced from node %s, which has no link to do so: check that one is up, and the interfaces of the "+
			"L2Advertisement",
			a.Address, a.Node)
	}
	reason, links := lb.Announced, " on "+strings.Join(is.Links, " and ")
	for _, c := range is.Conflicts {
		if slices.Contains(is.Links, c.Link) {
			links += fmt.Sprintf(" (%s on %s claims it too)", c.MAC, c.Link)
		} else {
			reason = lb.AddressConflict
			links += fmt.Sprintf(" (not on %s, where it is in use by %s)", c.Link, c.MAC)
		}
	}
	return reason, announcedBy(a, links)
}

// conflicts returns a sentence for each address that this node announces although another machine claims it.
func (is announced) conflicts(o plan.Outcome, node string) []string {
	var out []string
	for _, a := range o.Announcers {
		if a.Node != node || !is[a.Address].Answered {
			continue
		}
		for _, c := range is[a.Address].Conflicts {
			out = append(out, fmt.Sprintf("%s on %s claims %s, which node %s announces: remove the address from that machine", c.MAC, c.Link, a.Address, node))
		}
	}
	return out
}
