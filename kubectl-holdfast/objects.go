package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Find returns the object of a name; nil if there is none.
func Find[T metav1.Object](all []T, namespace, name string) (none T) {
	for _, o := range all {
		if o.GetNamespace() == namespace && o.GetName() == name {
			return o
		}
	}

	return none
}

// conditionStep makes a step from a condition of any object, where True is good. Without the condition the step has no
// verdict.
func conditionStep(name string, conditions []metav1.Condition, condition string) Step {
	c := meta.FindStatusCondition(conditions, condition)
	if c == nil {
		return Step{Name: name}
	}

	verdict := Problem
	if c.Status == metav1.ConditionTrue {
		verdict = OK
	}

	return Step{
		Name:    name,
		Verdict: verdict,
		Reason:  lb.Reason(c.Reason),
		Text:    cmp.Or(c.Message, c.Reason),
	}
}

// absentReport returns the report about an object that does not exist, or could not be read.
func (s Snapshot) absentReport(subject, resource string, step Step) Report {
	step.Verdict = Problem
	step.Text = "it does not exist"
	step.Do = cmp.Or(step.Do, "correct the name: kubectl get "+resource+" lists those that exist")

	r := Report{Subject: subject}
	r.add(s.unlessUnread(step, "it", resource))
	return r.conclude()
}

// Address explains the Services that have an address, or why none has it.
func (s Snapshot) Address(a netip.Addr) (out []Report) {
	for _, o := range s.Objects.Services {
		if slices.Contains(config.StatusAddresses(o), a) {
			out = append(out, s.explanationOf(o.Namespace, o.Name).explain())
		}
	}

	if len(out) > 0 {
		return out
	}
	return []Report{s.freeAddress(a)}
}

// freeAddress explains why no Service has an address.
func (s Snapshot) freeAddress(a netip.Addr) Report {
	holder := Step{
		Name:    "holder",
		Verdict: Problem,
		Text:    "no Service has it",
		Do:      "ask for it with the annotation holdfast.dev/addresses on a Service",
	}

	pool := Step{
		Name:    "pool",
		Verdict: Problem,
		Reason:  lb.AddressNotInPool,
		Text:    "no IPAddressPool has it",
		Do:      "add it to a pool",
	}

	state, _ := s.compile()
	index := lb.IndexOf(state.Pools, func(p lb.Pool) []lb.Range { return p.Ranges })
	p := index.Find(a)
	if p.Name != "" {
		pool = Step{
			Name:    "pool",
			Verdict: OK,
			Text:    "IPAddressPool " + p.Name + " has it",
		}
	}

	r := Report{Subject: "address " + a.String()}
	r.add(s.unlessUnread(holder, "Services", Services))
	r.add(s.unlessUnread(pool, "pools", Pools))
	r.add(s.conflictSteps(a)...)
	return r.conclude()
}

// conflictSteps makes steps about foreign machines that have one of these addresses, or any address without arguments.
func (s Snapshot) conflictSteps(addresses ...netip.Addr) (out []Step) {
	for _, state := range s.States {
		for _, c := range state.Status.Conflicts {
			a, err := netip.ParseAddr(c.Address)
			isMeant := addresses == nil || slices.Contains(addresses, a)
			if err != nil || !isMeant {
				continue
			}

			out = append(out, Step{
				Name:    "conflict",
				Verdict: Problem,
				Reason:  lb.AddressConflict,
				Text:    fmt.Sprintf("node %s sees that the machine with MAC %s has %s", state.Name, c.MAC, c.Address),
			})
		}
	}

	return out
}

// nodeProblems makes steps about the problems of nodes. It omits nodes without a verdict.
func (s Snapshot) nodeProblems(verdict func(node string) Verdict) (out []Step) {
	for _, state := range s.States {
		for _, p := range state.Status.Problems {
			out = append(out, Step{
				Name:    "node " + state.Name,
				Verdict: verdict(state.Name),
				Reason:  lb.Reason(p.Reason),
				Text:    p.Message,
			})
		}
	}

	return out
}

// sessionSteps makes steps about the BGP sessions of a node, or with a peer; "" means all.
func (s Snapshot) sessionSteps(node, peer string) (out []Step) {
	for _, state := range s.States {
		if node != "" && state.Name != node {
			continue
		}

		for _, session := range state.Status.Sessions {
			if peer == "" || session.Peer == peer {
				out = append(out, sessionStep(state.Name, session))
			}
		}
	}

	return out
}

// sessionStep makes the step about one session of a node.
func sessionStep(node string, session v1beta1.SessionState) Step {
	step := Step{Name: "session", Verdict: OK}
	var text string
	switch {
	case session.State != v1beta1.SessionStateEstablished:
		text = cmp.Or(session.LastError, "no session yet")
		step.Verdict = Problem
		step.Reason = lb.SessionDown
		step.Do = fmt.Sprintf("repair the session of node %s with BGPPeer %s: %s", node, session.Peer, text)
	case session.Withheld != "":
		text = session.Withheld
		step.Verdict = Note
	default:
		text = fmt.Sprintf("established, %d routes", session.AdvertisedRoutes)
	}

	step.Text = fmt.Sprintf("node %s with BGPPeer %s: %s", node, session.Peer, text)
	return step
}

// poolStep makes the step about the addresses of a pool.
func poolStep(p *v1beta1.IPAddressPool) Step {
	st := p.Status
	step := Step{
		Name:    "addresses",
		Verdict: OK,
		Text: fmt.Sprintf(
			"IPv4: %d assigned, %d available, %d wait for reuseDelay; IPv6: %d, %d, %d",
			st.AssignedIPv4,
			st.AvailableIPv4,
			st.QuarantinedIPv4,
			st.AssignedIPv6,
			st.AvailableIPv6,
			st.QuarantinedIPv6,
		),
	}

	if st.AvailableIPv4+st.AvailableIPv6 == 0 {
		step.Verdict = Problem
		step.Reason = lb.PoolExhausted
		step.Do = "add addresses to IPAddressPool " + p.Name
	}

	if st.RetainedCount > 0 {
		step.Details = []string{fmt.Sprintf("%d are held though they were removed from the pool", st.RetainedCount)}
	}

	return step
}

// Pool explains an IPAddressPool.
func (s Snapshot) Pool(name string) Report {
	r := Report{Subject: "IPAddressPool " + name}
	p := Find(s.Objects.Pools, "", name)
	if p == nil {
		return s.absentReport(r.Subject, Pools, Step{Name: "object"})
	}

	for _, condition := range []string{v1beta1.ConditionValid, v1beta1.ConditionAddressesFree} {
		r.add(conditionStep(condition, p.Status.Conditions, condition))
	}

	r.add(poolStep(p))
	return r.conclude()
}

// Peer explains the sessions with a BGPPeer.
func (s Snapshot) Peer(name string) Report {
	r := Report{Subject: "BGPPeer " + name}
	p := Find(s.Objects.Peers, "", name)
	if p == nil {
		return s.absentReport(r.Subject, Peers, Step{Name: "object"})
	}

	r.add(conditionStep(v1beta1.ConditionValid, p.Status.Conditions, v1beta1.ConditionValid))
	r.add(s.peerStep(p))
	r.add(s.sessionSteps("", name)...)
	r.add(s.unlessUnread(Step{Name: "sessions"}, "SpeakerStates", States))
	return r.conclude()
}

// Node explains what the speaker of a node sees and does.
func (s Snapshot) Node(name string) Report {
	r := Report{Subject: "node " + name}
	if Find(s.Objects.Nodes, "", name) == nil {
		return s.absentReport(r.Subject, Nodes, Step{Name: "object"})
	}

	r.add(s.unlessUnread(s.speakerPodStep(name), "pods", Pods))
	r.add(s.layer2Steps(name)...)
	r.add(s.nodeProblems(func(node string) Verdict {
		if node == name {
			return Problem
		}
		return ""
	})...)

	r.add(s.sessionSteps(name, "")...)
	r.add(s.unlessUnread(Step{Name: "state"}, "SpeakerStates", States))
	return r.conclude()
}

// speakerPodStep makes the step about the speaker's pod on a node.
func (s Snapshot) speakerPodStep(node string) Step {
	why, isUnready := s.unreadySpeakers()[node]
	if isUnready {
		return Step{
			Name:    "speaker",
			Verdict: Problem,
			Text:    why,
			Do:      "kubectl -n " + s.Namespace + " describe pod and logs of it",
		}
	}

	for _, p := range s.Pods {
		if p.Spec.NodeName == node && isPodReady(p) {
			return Step{
				Name:    "speaker",
				Verdict: OK,
				Text:    "pod " + p.Name + " is ready",
			}
		}
	}

	return Step{
		Name:    "speaker",
		Verdict: Problem,
		Text:    "no pod of the speaker is on the node",
		Do:      "look at the node's taints and at speaker.nodeSelector of the chart",
	}
}

// layer2Steps makes the steps about the addresses of a node, and about nodes that do not reach it.
func (s Snapshot) layer2Steps(name string) (out []Step) {
	for _, state := range s.States {
		if state.Name == name {
			out = append(out, memberStep(state.Status))
		}

		isSilent := func(n v1beta1.SilentNode) bool { return n.Node == name }
		if slices.ContainsFunc(state.Status.Unreachable, isSilent) {
			out = append(out, Step{
				Name:    "network",
				Verdict: Problem,
				Reason:  lb.NodeUnreachable,
				Text:    "node " + state.Name + " does not reach it",
			})
		}
	}

	return out
}

// memberStep makes the step about the addresses of a node, and the speakers that it hears.
func memberStep(st v1beta1.SpeakerStateStatus) Step {
	return Step{
		Name:    "layer 2",
		Verdict: OK,
		Text: fmt.Sprintf(
			"it answers for %d IPv4 and %d IPv6 addresses, and hears %d of %d speakers",
			st.Owned.IPv4,
			st.Owned.IPv6,
			st.Members.Alive,
			st.Members.Expected,
		),
	}
}
