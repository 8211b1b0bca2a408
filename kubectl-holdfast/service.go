package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

// serviceExplanation explains one Service.
type serviceExplanation struct {
	*Snapshot
	object *corev1.Service
	key    lb.Key
	// state has only this Service, as the daemons read it. It has no Service if Holdfast does not serve it, or if too
	// little could be read.
	state lb.State
	// assignment is what the controller would decide at present; nil if state has no Service.
	assignment *ipam.Assignment
	// verdicts has the verdict of each known node, by the node's own plan.
	verdicts map[string]plan.Verdict
	// unread is the step about objects that could not be read. Without them the daemons' decisions are unknown.
	unread Step
	report Report
}

// explanationOf decides about a Service as the daemons would, if everything could be read.
func (s Snapshot) explanationOf(namespace, name string) *serviceExplanation {
	key := lb.Key{Namespace: namespace, Name: name}
	e := &serviceExplanation{
		Snapshot: &s,
		key:      key,
		object:   Find(s.Objects.Services, namespace, name),
		report:   Report{Subject: "Service " + key.String()},
	}

	e.unread = e.unlessUnread(
		Step{Name: "speakers' pages"},
		"what decides which speakers to ask",
		Services,
		Pools,
		Nodes,
		Slices,
		L2Ads,
		BGPAds,
		Peers,
		Pods,
	)

	isUnread := e.unread.Verdict != ""
	if isUnread {
		return e
	}

	e.state, _ = e.compile()
	for _, a := range ipam.Assign(e.state).Assignments {
		if a.Key == key {
			e.assignment = a
		}
	}

	isOther := func(s *lb.Service) bool { return s.Key != key }
	e.state.Services = slices.DeleteFunc(e.state.Services, isOther)
	if len(e.state.Services) == 0 || len(e.state.Services[0].Addresses) == 0 {
		return e
	}

	e.verdicts = map[string]plan.Verdict{}
	for node := range e.state.Nodes {
		e.verdicts[node] = *plan.ForNode(node, e.state).Verdicts.Of(key)
	}

	return e
}

// explain explains the Service, in the order in which a packet to its address meets the decisions.
func (e *serviceExplanation) explain() Report {
	if e.object == nil {
		step := Step{
			Name: "Service",
			Do:   "look at kubectl get services --all-namespaces: no Service has this name",
		}
		return e.absentReport(e.report.Subject, Services, step)
	}

	e.report.add(e.classStep())
	if !e.isServed() {
		return e.report.conclude()
	}

	hasAddress := meta.IsStatusConditionTrue(e.object.Status.Conditions, v1beta1.ConditionAddressAssigned)
	e.report.add(e.controllerStep(hasAddress))
	e.addAddress()
	e.report.add(e.speakersStep())
	e.report.add(e.proxyStep())
	e.addAnnouncements()
	e.addMachines()
	e.addFilter()
	e.addNodeProblems()
	e.addSpeakerPages()
	e.report.add(e.endpointsStep())
	e.report.add(e.egressStep())
	return e.report.conclude()
}

// isServed reports whether Holdfast serves the Service.
func (e *serviceExplanation) isServed() bool {
	isLoadBalancer := e.object.Spec.Type == corev1.ServiceTypeLoadBalancer
	return isLoadBalancer && e.object.DeletionTimestamp == nil && e.Options.Serves(e.object)
}

// classStep makes the step about whether Holdfast serves the Service.
func (e *serviceExplanation) classStep() Step {
	spec := e.object.Spec
	step := Step{Name: "class", Verdict: Problem}
	recreate := "create the Service again with spec.loadBalancerClass: " + e.Options.LoadBalancerClass
	serves := "Holdfast serves the class " + e.Options.LoadBalancerClass
	if e.Options.Default {
		serves += " and Services without one"
	}

	switch {
	case spec.Type != corev1.ServiceTypeLoadBalancer:
		step.Text = fmt.Sprintf("its type is %s: only type LoadBalancer gets an external address", spec.Type)
		step.Do = "set spec.type: LoadBalancer"
	case e.object.DeletionTimestamp != nil:
		return e.deletionStep()
	case e.Options.Serves(e.object):
		step.Verdict = OK
		step.Text = serves
		if e.Unread[Controller] != "" {
			step.Text += " by default: its settings could not be read"
		}
	case spec.LoadBalancerClass == nil:
		step.Text = "it names no class, and " + serves + " only"
		step.Do = recreate + ", or install Holdfast as the default"
	default:
		step.Text = "its class is " + *spec.LoadBalancerClass + ", and " + serves +
			": another load balancer has to serve it"
		step.Do = recreate + ": the field cannot be changed"
	}

	return step
}

// deletionStep makes the step about a Service that is being deleted.
func (e *serviceExplanation) deletionStep() Step {
	step := Step{
		Name:    "class",
		Verdict: Problem,
		Text:    "it is being deleted, so that its addresses go",
		Do:      "wait for its end, and create it again if you need it",
	}

	if len(e.object.Finalizers) > 0 {
		step.Text += ", and waits for its finalizers: " + strings.Join(e.object.Finalizers, ", ")
		step.Do = "look at the logs of what should remove its finalizers; Holdfast's is " + v1beta1.FinalizerAddress
	}
	return step
}

// addAddress adds the steps about the addresses of the Service and about what it asks for.
func (e *serviceExplanation) addAddress() {
	step := conditionStep("address", e.object.Status.Conditions, v1beta1.ConditionAddressAssigned)
	switch {
	case step.Verdict == OK && step.Reason == lb.AddressKept:
		step.Verdict = Note
	case step.Verdict == "":
		step = e.plannedAddressStep()
	}

	e.report.add(step)
	e.addIfUnmet("status", v1beta1.ConditionWritten, Problem)
	e.addIfUnmet("annotations", v1beta1.ConditionAnnotationsHonoured, Note)
}

// plannedAddressStep makes the step about the addresses that the controller would assign. It has not written them yet.
func (e *serviceExplanation) plannedAddressStep() Step {
	undecided := &ipam.Assignment{Message: "the controller has not decided about it"}
	a := cmp.Or(e.assignment, undecided)
	step := Step{
		Name:    "address",
		Verdict: Problem,
		Reason:  a.Reason,
		Text:    a.Message,
	}

	if len(a.Addresses) > 0 || a.Reason == "" {
		step.Do = "wait some seconds; if nothing changes look at " + e.logs("controller")
	}

	if len(a.Addresses) > 0 {
		step.Text = "the controller has not written yet that it gets " + lb.SomeOf(a.Addresses)
	}

	return step
}

// addIfUnmet adds a step with this verdict about a condition that is not met.
func (e *serviceExplanation) addIfUnmet(name, condition string, verdict Verdict) {
	step := conditionStep(name, e.object.Status.Conditions, condition)
	if step.Verdict == Problem {
		step.Verdict = verdict
		e.report.add(step)
	}
}

// addMachines adds the steps about foreign machines that have its addresses, and about the machines that answered a
// probe.
func (e *serviceExplanation) addMachines() {
	addresses := config.StatusAddresses(e.object)
	if len(addresses) > 0 {
		e.report.add(e.conflictSteps(addresses...)...)
	}

	for _, step := range e.Probed {
		step.isSymptom = true
		e.report.add(step)
	}
}

// addFilter adds the steps about the clients that may connect.
func (e *serviceExplanation) addFilter() {
	step := conditionStep("filter", e.object.Status.Conditions, v1beta1.ConditionFiltered)
	switch {
	case step.Reason == lb.FilterNotEnforceable:
		step.Verdict = Note // if no node may announce it for that reason, the announcement is the problem
	case step.Verdict == "" && e.Options.OtherDataPath:
		step.Verdict = OK
		step.Text = "Holdfast does not filter: another program than kube-proxy delivers (dataPath: Other)"
	case step.Verdict == "":
		step.Verdict = OK
		step.Text = "every client may connect to the declared ports"
	}

	closed := e.closedFamily()
	if closed != "" && step.Verdict != Problem {
		step.Verdict = Problem
		step.Reason = lb.NoSourceAllowed
		step.Text = fmt.Sprintf(
			"no client may connect by %s: every source range of the Service and its pool is of the other family",
			closed,
		)

		step.Do = fmt.Sprintf(
			"add source ranges of %[1]s to the list that has none, or take %[1]s out of spec.ipFamilies",
			closed,
		)
	}

	e.report.add(step)
	e.addIfUnmet("filter on the node", v1beta1.ConditionFilterEnforced, Problem)
}

// closedFamily returns a family of the Service in which no client may connect, although clients of the other family
// may; "" without such a family.
func (e *serviceExplanation) closedFamily() lb.Family {
	isOpen := map[lb.Family]bool{}
	for _, f := range plan.Frontends(e.state) {
		family := lb.FamilyOf(f.Address)
		admitsSources := !f.Restricted || len(f.Allow) > 0
		isOpen[family] = isOpen[family] || admitsSources
	}

	for _, family := range []lb.Family{lb.IPv4, lb.IPv6} {
		open, isServed := isOpen[family]
		if isServed && !open && len(isOpen) > 1 {
			return family
		}
	}

	return ""
}

// egressStep makes the step about whether pods send from the addresses of a Service that asks for it.
func (e *serviceExplanation) egressStep() Step {
	if !config.AsksEgress(e.object) {
		return Step{}
	}

	step := conditionStep("egress", e.object.Status.Conditions, v1beta1.ConditionEgress)
	if step.Verdict == "" {
		step.Verdict = Problem
		step.Reason = lb.EgressUnavailable
		step.Text = "the controller has not written whether pods send from its addresses"
		step.Do = "wait some seconds; if nothing changes look at " + e.logs("controller")
	}

	step.isSymptom = len(config.StatusAddresses(e.object)) == 0
	return step
}
