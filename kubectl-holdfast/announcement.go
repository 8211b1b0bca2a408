package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// proxyStep makes the step about whether proxies serve a Service that asks for them, and on which nodes. A Service that
// waits for them is served as before.
func (e *serviceExplanation) proxyStep() Step {
	step := conditionStep("proxy", e.object.Status.Conditions, v1beta1.ConditionProxied)
	if step.Verdict == Problem && step.Reason != lb.ProxyRefused {
		step.Verdict = Note
	}

	nodes := e.proxyNodes()
	if len(nodes) > 0 {
		step.Details = []string{"by its speaker, a proxy serves it on " + lb.SomeOf(nodes)}
		return step
	}

	isExpected := step.Verdict == OK || step.Verdict == Note
	if isExpected && e.Unread[States] == "" {
		step.Verdict = Note
		step.Do = "no speaker reports a proxy that serves it: look at the pods of the Deployment of the proxies, and the " +
			"logs of their agents"
	}

	return step
}

// proxyNodes returns the nodes whose speakers report a proxy that serves the Service, sorted.
func (e *serviceExplanation) proxyNodes() []string {
	var nodes []string
	for _, s := range e.States {
		if slices.Contains(s.Status.Proxied, e.key.String()) {
			nodes = append(nodes, s.Name)
		}
	}

	slices.Sort(nodes)
	return nodes
}

// announces reports whether a node announces the Service by its own plan.
func (e *serviceExplanation) announces(node string) bool {
	verdict := e.verdicts[node]
	return verdict.L2.Here == lb.Announced || verdict.BGP.Here == lb.Announced
}

// addAnnouncements adds the steps about layer 2, about the sessions over which routes would go, and about BGP.
func (e *serviceExplanation) addAnnouncements() {
	l2, bgp := e.announcementSteps()
	isUnselected := l2.Verdict == "" && bgp.Verdict == ""
	if isUnselected && len(config.StatusAddresses(e.object)) > 0 {
		l2 = e.unselectedStep()
	}

	// The owner's condition has this reason. It announces all the same, because a router may have a route to the link.
	if l2.Verdict == OK && strings.Contains(l2.Text, string(lb.NoSubnet)+":") {
		l2.Reason = lb.NoSubnet
		l2.Verdict = Problem
		if bgp.Verdict == OK {
			l2.Verdict = Note
		}
	}

	e.report.add(l2)
	if bgp.Verdict != "" {
		e.addSessions(bgp.Reason)
	}

	e.report.add(bgp)
}

// announcementSteps makes the steps of both protocols.
func (e *serviceExplanation) announcementSteps() (l2, bgp Step) {
	var hinderedL2, hinderedBGP map[lb.Reason][]string
	if e.verdicts != nil {
		hinderedL2, hinderedBGP = plan.Hindrances(e.state, e.state.Services[0])
	}

	l2 = e.announcementStep(announcement{
		protocol:  "layer 2",
		condition: v1beta1.ConditionAnnouncedL2,
		hindered:  hinderedL2,
		outcome:   func(v plan.Verdict) plan.Outcome { return v.L2 },
	})

	bgp = e.announcementStep(announcement{
		protocol:  "BGP",
		condition: v1beta1.ConditionAnnouncedBGP,
		hindered:  hinderedBGP,
		outcome:   func(v plan.Verdict) plan.Outcome { return v.BGP },
	})

	return l2, bgp
}

// unselectedStep makes the step about a Service with an address that no advertisement selects, as far as is known.
func (e *serviceExplanation) unselectedStep() Step {
	if len(e.state.Services) == 0 {
		return Step{
			Name:    "announcement",
			Verdict: Unseen,
			Text:    "nothing is known of it: advertisements could not be read",
		}
	}

	return Step{
		Name:    "announcement",
		Verdict: Problem,
		Reason:  lb.NoAdvertisement,
		Text:    "no L2Advertisement or BGPAdvertisement selects its pool and it",
	}
}

// announcement is one of the protocols by which nodes may announce a Service.
type announcement struct {
	protocol, condition string
	// hindered are the nodes that may not announce the Service, by reason.
	hindered map[lb.Reason][]string
	// outcome returns the outcome of the protocol in a node's verdict.
	outcome func(plan.Verdict) plan.Outcome
}

// announcementStep makes the step of a protocol from its condition, or from the plans if no speaker wrote one. It
// groups the nodes that do not announce by their reasons. Without an advertisement of the protocol for the Service the
// step has no verdict.
func (e *serviceExplanation) announcementStep(a announcement) Step {
	step := conditionStep(a.protocol, e.object.Status.Conditions, a.condition)
	nodes := map[lb.Reason][]string{}
	for _, node := range slices.Sorted(maps.Keys(e.verdicts)) {
		outcome := a.outcome(e.verdicts[node])
		if step.Verdict == "" && outcome.Selected {
			e.usePlan(&step, outcome)
		}

		if outcome.Here != lb.Announced && outcome.Here != "" {
			reason := a.hindrance(node, outcome.Here)
			nodes[reason] = append(nodes[reason], node)
		}
	}

	// The step about endpoints, or about the sessions, is closer to the cause.
	symptoms := []lb.Reason{lb.NoServingEndpoint, lb.PortNotServed, lb.NoSession}
	step.isSymptom = slices.Contains(symptoms, step.Reason)
	if step.Verdict == Problem && step.Reason == lb.NoEligibleNode {
		step.Do = e.remedyOfNodes(a.protocol, nodes)
	}

	isSameOnAllNodes := len(nodes) == 1
	if isSameOnAllNodes && step.Verdict == Problem {
		return step
	}

	for _, reason := range slices.Sorted(maps.Keys(nodes)) {
		detail := fmt.Sprintf("not by %s: %s", lb.SomeOf(nodes[reason]), reason)
		step.Details = append(step.Details, detail)
	}

	return step
}

// usePlan fills a step from the plan, because no speaker has written the condition.
func (e *serviceExplanation) usePlan(step *Step, outcome plan.Outcome) {
	step.Verdict = Problem
	step.Reason = outcome.Reason
	step.Text = fmt.Sprintf("no speaker has written about it; the plan says %s: %s", outcome.Reason, outcome.Message)
	if outcome.Reason == lb.Announced {
		step.Do = "wait some seconds; if nothing changes look at " + e.logs("speaker")
	}
}

// hindrance returns why a node may not announce the Service, or otherwise if it may.
func (a announcement) hindrance(node string, otherwise lb.Reason) lb.Reason {
	for _, reason := range slices.Sorted(maps.Keys(a.hindered)) {
		if slices.Contains(a.hindered[reason], node) {
			return reason
		}
	}

	return otherwise
}

// remedyOfNodes returns what to do so that a node may announce the Service: about the reason of the largest number of
// nodes; "" if no reason has a remedy.
func (e *serviceExplanation) remedyOfNodes(protocol string, nodes map[lb.Reason][]string) string {
	var frequent lb.Reason
	for _, reason := range slices.Sorted(maps.Keys(nodes)) {
		if reason.Remedy() != "" && len(nodes[reason]) > len(nodes[frequent]) {
			frequent = reason
		}
	}

	if frequent == "" {
		return ""
	}

	remedy := frequent.Remedy()
	if frequent == lb.NodeNotSelected {
		remedy = e.selectorRemedy(protocol, nodes[frequent])
	}

	return fmt.Sprintf("for node %s (%s): %s", lb.SomeOf(nodes[frequent]), frequent, remedy)
}

// selectorRemedy returns which node selector to correct: the Service's if it does not select all of these nodes, else
// the selectors of the advertisements.
func (e *serviceExplanation) selectorRemedy(protocol string, nodes []string) string {
	selectors := e.state.Services[0].NodeSelectors
	isUnmatched := func(node string) bool {
		return !lb.MatchesAny(selectors, e.state.Nodes[node].Labels)
	}

	if len(selectors) > 0 && slices.ContainsFunc(nodes, isUnmatched) {
		return "correct the node selector of the Service (" + config.AnnotationNodeSelector +
			"), or label a node as it asks"
	}

	return "correct nodeSelectors of the advertisements for " + protocol + ", or label a node as they ask"
}

// addSessions adds the steps about peers with sessions that are down. They are problems only if the Service is not
// announced for lack of a session: otherwise routes go out all the same, or lack something else.
func (e *serviceExplanation) addSessions(reason lb.Reason) {
	for _, p := range e.Objects.Peers {
		step := e.peerStep(p)
		concernsNoNode := step.Reason == lb.NoNodeSelected
		if step.Verdict == "" || concernsNoNode {
			continue
		}

		if reason != lb.NoSession {
			step.Verdict = Note
		}

		e.report.add(step)
	}
}

// peerStep makes the step about a peer if one of its sessions is down, with the words of the speakers. Without such a
// session the step has no verdict.
func (s Snapshot) peerStep(p *v1beta1.BGPPeer) Step {
	step := conditionStep("session", p.Status.Conditions, v1beta1.ConditionEstablished)
	if step.Verdict != Problem {
		return Step{}
	}

	step.Text = "BGPPeer " + p.Name + ": " + step.Text
	for _, session := range s.sessionSteps("", p.Name) {
		if session.Verdict == Problem {
			step.Details = append(step.Details, session.Text)
			step.Do = cmp.Or(step.Do, session.Do)
		}
	}

	return step.withFewDetails()
}
