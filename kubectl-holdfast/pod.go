package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// reportAge is the age from which a SpeakerState may be out of date: speakers write every ten minutes.
const reportAge = 25 * time.Minute

// podExplanation explains the outgoing connections of one pod.
type podExplanation struct {
	Snapshot
	object *corev1.Pod
	// pod is the pod as the daemons read it.
	pod lb.Pod
	// state is the cluster as the daemons read it.
	state lb.State
	// service decides about the pod.
	service *lb.Service
}

// Pod explains from which addresses a pod opens connections to the outside of the cluster.
func (s Snapshot) Pod(key lb.Key) Report {
	r := Report{Subject: "pod " + key.String()}
	o := Find(s.Objects.EgressPods, key.Namespace, key.Name)
	if o == nil {
		do := "correct the name: kubectl -n " + key.Namespace + " get pods lists the pods that exist"
		return s.absentReport(r.Subject, EgressPods, Step{Name: "pod", Do: do})
	}

	pod, mayTranslate := config.EgressPod(o)
	e := &podExplanation{
		Snapshot: s,
		object:   o,
		pod:      pod,
	}

	r.add(e.existenceStep())
	if !mayTranslate {
		return r.conclude()
	}

	e.state, _ = s.compile()
	e.service = e.decidingService()
	r.add(e.serviceStep())
	if e.service == nil {
		return r.conclude()
	}

	for _, a := range pod.Addresses {
		r.add(e.addressSteps(a)...)
	}

	r.add(e.announcementStep(), e.conditionStep(), e.nodeStep())
	return r.conclude()
}

// existenceStep makes the step about the pod itself.
func (e *podExplanation) existenceStep() Step {
	step := Step{Name: "pod", Verdict: Note}
	node := e.object.Spec.NodeName
	phase := e.object.Status.Phase
	describe := "kubectl -n " + e.object.Namespace + " describe pod " + e.object.Name
	switch {
	case node == "":
		step.Text = "no node runs it yet"
		step.Do = describe
	case phase == corev1.PodSucceeded || phase == corev1.PodFailed:
		step.Text = "it has ended, and opens no connections"
	case e.object.Spec.HostNetwork:
		step.Text = "it is on the network of node " + node + ": its connections leave from the node's addresses"
		if len(e.selectingServices()) == 0 {
			step.Verdict = OK
		}
	case len(e.pod.Addresses) == 0:
		step.Text = "it runs on node " + node + " and has no address yet"
		step.Do = describe
	default:
		step.Verdict = OK
		step.Text = fmt.Sprintf("it runs on node %s and has %s", node, lb.SomeOf(e.pod.Addresses))
	}

	return step
}

// selectingServices returns the Services with egress that select the pod.
func (e *podExplanation) selectingServices() (out []*corev1.Service) {
	for _, o := range e.Objects.Services {
		if o.Namespace != e.object.Namespace || !config.AsksEgress(o) || len(o.Spec.Selector) == 0 {
			continue
		}

		selector := labels.SelectorFromSet(o.Spec.Selector)
		if selector.Matches(labels.Set(e.object.Labels)) {
			out = append(out, o)
		}
	}

	return out
}

// decidingService returns the Service that decides about the pod; nil if none does.
func (e *podExplanation) decidingService() *lb.Service {
	for key := range lb.MatchEgress(e.state.Services, []lb.Pod{e.pod}).Pods {
		return e.compiled(key)
	}
	return nil
}

// serviceStep makes the step about the Service that decides about the pod.
func (e *podExplanation) serviceStep() Step {
	others := e.describeOthers()
	step := Step{
		Name:    "Service",
		Verdict: OK,
		Details: others,
	}

	fromNode := "its connections leave from the address of node " + e.pod.Node
	switch {
	case e.service == nil && len(others) > 0:
		step.Verdict = Problem
		step.Reason = lb.EgressUnavailable
		step.Text = "no Service that selects it has an address to send from: " + fromNode
		step.Do = "find out why: kubectl holdfast why " + config.KeyOf(e.selectingServices()[0]).String()
	case e.service == nil:
		step.Text = fmt.Sprintf("no Service with %s selects it: %s", config.AnnotationEgress, fromNode)
	case len(others) > 0:
		step.Verdict = Note
		step.Text = "Service " + e.service.Key.String() + " decides, and others select the pod too"
		step.Do = fmt.Sprintf(
			"nothing, if you agree; otherwise remove %s from the others, or correct their selectors",
			config.AnnotationEgress,
		)
	default:
		step.Text = "Service " + e.service.Key.String() + " decides: it is the only one with " + config.AnnotationEgress
	}

	return e.unlessUnread(step.withFewDetails(), "they", Services)
}

// compiled returns a Service as the daemons read it; nil if Holdfast does not serve it.
func (e *podExplanation) compiled(key lb.Key) *lb.Service {
	i := slices.IndexFunc(e.state.Services, func(s *lb.Service) bool { return s.Key == key })
	if i < 0 {
		return nil
	}
	return e.state.Services[i]
}

// describeOthers returns a sentence about each Service that selects the pod and does not decide about it.
func (e *podExplanation) describeOthers() (out []string) {
	for _, o := range e.selectingServices() {
		key := config.KeyOf(o)
		service := e.compiled(key)
		why := "is younger"
		switch {
		case service != nil && service == e.service:
			continue
		case service == nil:
			why = "is not Holdfast's to serve"
		case !service.Egress:
			why = "does not get what it asks for"
		case !service.Sends():
			why = "has no address yet"
		}

		out = append(out, fmt.Sprintf("Service %s selects it and %s", key, why))
	}

	return out
}

// addressSteps makes the steps about an address of the pod: the address that replaces it, and the ports of its node.
func (e *podExplanation) addressSteps(pod netip.Addr) []Step {
	family := lb.FamilyOf(pod)
	isOfFamily := func(a netip.Addr) bool { return lb.FamilyOf(a) == family }
	i := slices.IndexFunc(e.service.Addresses, isOfFamily)
	if i < 0 {
		return []Step{{
			Name:    string(family),
			Verdict: Problem,
			Reason:  lb.EgressUnavailable,
			Text: fmt.Sprintf(
				"new connections of %s are rejected: Service %s has no %s address",
				pod,
				e.service.Key,
				family,
			),
			Do: fmt.Sprintf(
				"give the Service an address of %s (spec.ipFamilies), or remove %s from it",
				family,
				config.AnnotationEgress,
			),
		}}
	}

	address := e.service.Addresses[i]
	step := Step{
		Name:    string(family),
		Verdict: OK,
		Text:    fmt.Sprintf("%s sends from %s", pod, address),
	}

	return []Step{step, e.portsStep(address)}
}

// portsStep makes the step about the ports of an address that the pod's node has.
func (e *podExplanation) portsStep(address netip.Addr) Step {
	step := Step{Name: "ports", Verdict: OK}
	i := slices.IndexFunc(e.state.Slices, func(s lb.PortSlice) bool {
		return s.Address == address &&
			s.Node == e.pod.Node &&
			s.Namespace == e.pod.Key.Namespace
	})

	if i >= 0 {
		slice := e.state.Slices[i]
		step.Text = fmt.Sprintf("node %s has the ports %d to %d of %s", slice.Node, slice.First, slice.Last(), address)
	} else {
		step.Verdict = Problem
		step.Reason = lb.EgressUnavailable
		step.Text = fmt.Sprintf(
			"node %s has no ports of %s for namespace %s: new connections are rejected",
			e.pod.Node,
			address,
			e.pod.Key.Namespace,
		)

		step.Do = "wait some seconds; if nothing changes: kubectl holdfast why " + e.service.Key.String()
	}

	return e.unlessUnread(step, "EgressAllocations", Allocations)
}

// announcementStep makes the step about the nodes that announce the Service, to which answers come.
func (e *podExplanation) announcementStep() Step {
	step := conditionStep("layer 2", e.serviceObject().Status.Conditions, v1beta1.ConditionAnnouncedL2)
	if step.Verdict == "" {
		step.Verdict = Problem
		step.Reason = lb.NoAdvertisement
		step.Text = "no node announces Service " + e.service.Key.String() + " by layer 2: new connections are rejected"
	}

	return step
}

// conditionStep makes the step about the controller's condition of the Service. It may concern other pods.
func (e *podExplanation) conditionStep() Step {
	step := conditionStep("egress", e.serviceObject().Status.Conditions, v1beta1.ConditionEgress)
	switch step.Verdict {
	case "":
		step.Verdict = Note
		step.Text = "the controller has not written about the pods of the Service"
		step.Do = "wait some seconds; if nothing changes look at " + e.logs("controller")
	case Problem:
		step.Verdict = Note
		step.Do = "if this concerns the pod: kubectl holdfast why " + e.service.Key.String()
	}

	return step
}

// serviceObject returns the object of the Service that decides.
func (e *podExplanation) serviceObject() *corev1.Service {
	return Find(e.Objects.Services, e.service.Key.Namespace, e.service.Key.Name)
}

// nodeStep makes the step about the report of the speaker of the pod's node.
func (e *podExplanation) nodeStep() Step {
	step := Step{
		Name:    "node " + e.pod.Node,
		Verdict: OK,
		Text:    "its speaker rejects no connections of the Service's pods",
	}

	look := "look at kubectl holdfast why node " + e.pod.Node
	state := Find(e.States, "", e.pod.Node)
	if state == nil {
		step.Verdict = Problem
		step.Text = "no speaker has reported, and a node without a speaker translates nothing"
		step.Do = look
		return e.unlessUnread(step, "SpeakerStates", States)
	}

	status := state.Status
	observed := time.Time{}
	if status.Observed != nil {
		observed = status.Observed.Time
	}

	isOfService := func(c v1beta1.ClosedEgress) bool { return c.Service == e.service.Key.String() }
	i := slices.IndexFunc(status.EgressClosed, isOfService)
	switch {
	case e.Now.Sub(observed) >= reportAge:
		step.Verdict = Note
		step.Text = "the last report of its speaker is old: " + observed.UTC().Format(time.RFC3339)
		step.Do = look
	case i >= 0:
		closed := status.EgressClosed[i]
		step.Verdict = Problem
		step.Reason = lb.EgressUnavailable
		step.Text = fmt.Sprintf(
			"its speaker rejects the connections of %d addresses of the Service's pods: %s",
			closed.PodAddresses,
			strings.TrimSpace(closed.Message),
		)
	case int(status.EgressClosedCount) > len(status.EgressClosed):
		step.Verdict = Note
		step.Text = fmt.Sprintf(
			"its speaker rejects the connections of %d Services, and names %d others",
			status.EgressClosedCount,
			len(status.EgressClosed),
		)

		step.Do = look
	}

	return step
}
