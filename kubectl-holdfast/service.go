package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
)

// why is the explanation of one Service.
type why struct {
	*Snapshot
	object *corev1.Service
	key    lb.Key
	// state has this Service alone, as the daemons read it, or none if it is not theirs to serve or too little could be
	// read.
	state lb.State
	// assignment is what the controller would decide now; nil as state.Services.
	assignment *ipam.Assignment
	// verdicts has the verdict of each known node, by its own plan.
	verdicts map[string]plan.Verdict
	// blind is the step of what could not be read, and keeps the daemons' decisions from being made here.
	blind  Step
	report Report
}

// explain explains the Service, in the order in which a packet to its address meets the decisions.
func (w *why) explain() Report {
	if w.object == nil {
		return w.absent(
			w.report.Subject,
			Services,
			Step{Name: "Service", Do: "look at kubectl get services --all-namespaces: no Service has this name"},
		)
	}
	if w.class() {
		w.report.add(
			w.controller(meta.IsStatusConditionTrue(w.object.Status.Conditions, v1beta1.ConditionAddressAssigned)),
		)
		w.address()
		w.report.add(w.speakers())
		w.proxy()
		w.announcements()
		if a := config.StatusAddresses(w.object); len(a) > 0 {
			w.report.add(w.claims(a...)...)
		}
		for _, step := range w.Probed {
			step.isSymptom = true
			w.report.add(step)
		}
		w.filter()
		w.nodes()
		if w.Daemons != nil {
			for _, pod := range w.asked() {
				w.report.add(w.page(pod))
			}
			w.report.add(w.blind)
		}
		w.endpoints()
		w.egress()
	}
	return w.report.conclude()
}

// about decides about a Service as the daemons would, if everything could be read.
func (s Snapshot) about(namespace, name string) *why {
	key := lb.Key{Namespace: namespace, Name: name}
	w := &why{
		Snapshot: &s,
		key:      key,
		object:   Find(s.Objects.Services, namespace, name),
		report:   Report{Subject: "Service " + key.String()},
	}
	w.blind = w.seen(
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
	if w.blind.Verdict != "" {
		return w
	}
	w.state, _ = w.compile()
	for _, a := range ipam.Assign(w.state).Assignments {
		if a.Key == key {
			w.assignment = a
		}
	}
	w.state.Services = slices.DeleteFunc(w.state.Services, func(s *lb.Service) bool { return s.Key != key })
	if len(w.state.Services) == 0 || len(w.state.Services[0].Addresses) == 0 {
		return w
	}
	w.verdicts = map[string]plan.Verdict{}
	for node := range w.state.Nodes {
		w.verdicts[node] = *plan.ForNode(node, w.state).Verdicts.Of(key)
	}
	return w
}

// announces reports whether a node announces the Service by its own plan.
func (w *why) announces(node string) bool {
	return w.verdicts[node].L2.Here == lb.Announced || w.verdicts[node].BGP.Here == lb.Announced
}

// class reports whether the Service is Holdfast's to serve.
func (w *why) class() bool {
	spec, again := w.object.Spec, "create the Service again with spec.loadBalancerClass: "+w.Options.LoadBalancerClass
	serves := "Holdfast serves the class " + w.Options.LoadBalancerClass
	if w.Options.Default {
		serves += " and Services without one"
	}
	step := Step{Name: "class", Verdict: Problem}
	switch {
	case spec.Type != corev1.ServiceTypeLoadBalancer:
		step.Text, step.Do = fmt.Sprintf(
			"its type is %s: only type LoadBalancer gets an external address",
			spec.Type,
		), "set spec.type: LoadBalancer"
	case w.object.DeletionTimestamp != nil:
		step.Text = "it is being deleted, so that its addresses go"
		step.Do = "wait for its end, and create it again if you need it"
		if len(w.object.Finalizers) > 0 {
			step.Do = "look at the logs of what should remove its finalizers; Holdfast's is " + v1beta1.FinalizerAddress
			step.Text += ", and waits for its finalizers: " + strings.Join(w.object.Finalizers, ", ")
		}
	case w.Options.Serves(w.object):
		step.Verdict, step.Text = OK, serves
		if w.Unread[Controller] != "" {
			step.Text += " by default: its settings could not be read"
		}
	case spec.LoadBalancerClass == nil:
		step.Text, step.Do = "it names no class, and "+serves+" only", again+", or install Holdfast as the default"
	default:
		step.Text, step.Do = "its class is "+*spec.LoadBalancerClass+", and "+serves+
			": another load balancer has to serve it", again+": the field cannot be changed"
	}
	w.report.add(step)
	return step.Verdict == OK
}

// controller reports whether one leads. What it wrote, such as assigned addresses, stands without it.
func (s Snapshot) controller(assigned bool) Step {
	step := Step{Name: "controller", Verdict: OK, Text: "one leads"}
	var renewed time.Time
	for _, l := range s.Leases {
		if l.Spec.RenewTime != nil {
			renewed = l.Spec.RenewTime.Time
		}
	}
	if s.Now.Sub(renewed) > 15*time.Second { // older than the Lease of a controller that leads
		step.Verdict, step.Do = Note, "look at kubectl -n "+s.Namespace+" describe deployment,pod for why no controller runs"
		step.Text = fmt.Sprintf(
			"none leads since %s: addresses stay, and none is assigned",
			renewed.UTC().Format(time.RFC3339),
		)
		if renewed.IsZero() {
			step.Text = "none has ever led in namespace " + s.Namespace
		}
		if !assigned {
			step.Verdict = Problem
		}
	}
	return s.seen(step, "its Lease", Leases)
}

func (w *why) address() {
	step := conditionStep("address", w.object.Status.Conditions, v1beta1.ConditionAddressAssigned)
	a := cmp.Or(w.assignment, &ipam.Assignment{Message: "the controller has not decided about it"})
	switch {
	case step.Verdict == OK && step.Reason == lb.AddressKept:
		step.Verdict = Note
	case step.Verdict == "":
		step.Verdict, step.Reason, step.Text = Problem, a.Reason, a.Message
		if len(a.Addresses) > 0 || a.Reason == "" {
			step.Do = "wait some seconds; if nothing changes look at " + w.logs("controller")
		}
		if len(a.Addresses) > 0 {
			step.Text = "the controller has not written yet that it gets " + lb.SomeOf(a.Addresses)
		}
	}
	w.report.add(step)
	w.fault("status", v1beta1.ConditionWritten, Problem)
	w.fault("annotations", v1beta1.ConditionAnnotationsHonoured, Note)
}

// logs is the command that shows what the pods of a component log.
func (s Snapshot) logs(component string) string {
	return fmt.Sprintf(
		"kubectl -n %s logs -l app.kubernetes.io/name=holdfast,app.kubernetes.io/component=%s",
		s.Namespace,
		component,
	)
}

// fault adds the step of a condition that is not met.
func (w *why) fault(name, condition string, verdict Verdict) {
	if step := conditionStep(name, w.object.Status.Conditions, condition); step.Verdict == Problem {
		step.Verdict = verdict
		w.report.add(step)
	}
}

// speakers shows where none runs.
func (s Snapshot) speakers() Step {
	step, waiting := Step{Name: "speakers", Verdict: OK}, s.waiting()
	for _, node := range slices.Sorted(maps.Keys(waiting)) {
		step.Details = append(step.Details, fmt.Sprintf("node %s: %s", node, waiting[node]))
	}
	do := fmt.Sprintf(
		"kubectl -n %s describe pod -l app.kubernetes.io/name=holdfast,app.kubernetes.io/component=speaker, and the log "+
			"of the pod",
		s.Namespace,
	)
	if s.Speakers == nil {
		step.Verdict, step.Text = Problem,
			"namespace "+s.Namespace+" has no DaemonSet of speakers: no node announces anything"
		step.Do = "install Holdfast, or name its namespace by --holdfast-namespace"
	} else if st := s.Speakers.Status; st.NumberReady == 0 {
		step.Verdict, step.Text, step.Do = Problem, "no speaker is ready: what the conditions say of announcements is old", do
	} else if st.NumberReady < st.DesiredNumberScheduled || len(waiting) > 0 {
		step.Verdict, step.Do = Note, "find out why a speaker is not ready: "+do
		step.Text = fmt.Sprintf("%d of %d are ready", st.NumberReady, st.DesiredNumberScheduled)
	} else {
		step.Text = fmt.Sprintf("all %d are ready", st.NumberReady)
	}
	return s.seen(step.bound(), "the speakers' pods", Pods, Speakers)
}

// proxy shows whether proxies serve a Service that asks for them, and on which nodes. A Service that waits for them is
// served as before.
func (w *why) proxy() {
	step := conditionStep("proxy", w.object.Status.Conditions, v1beta1.ConditionProxied)
	if step.Verdict == Problem && step.Reason != lb.ProxyRefused {
		step.Verdict = Note
	}
	var nodes []string
	for _, s := range w.States {
		if slices.Contains(s.Status.Proxied, w.key.String()) {
			nodes = append(nodes, s.Name)
		}
	}
	if slices.Sort(nodes); len(nodes) > 0 {
		step.Details = []string{"by its speaker, a proxy serves it on " + lb.SomeOf(nodes)}
	} else if w.Unread[States] == "" && (step.Verdict == OK || step.Verdict == Note) {
		step.Verdict, step.Do = Note, "no speaker reports a proxy that serves it: look at the pods of the Deployment of "+
			"the proxies, and the logs of their agents"
	}
	w.report.add(step)
}

// announcement makes the step of one protocol from its condition, or from the plans if no speaker wrote one, and groups
// the nodes that do not announce by their reasons. There is no step if no advertisement of the protocol selects the
// Service.
func (w *why) announcement(
	name, condition string,
	hindered map[lb.Reason][]string,
	of func(plan.Verdict) plan.Outcome,
) Step {
	step, nodes := conditionStep(name, w.object.Status.Conditions, condition), map[lb.Reason][]string{}
	for _, node := range slices.Sorted(maps.Keys(w.verdicts)) {
		o := of(w.verdicts[node])
		if step.Verdict == "" && o.Selected {
			step.Verdict, step.Reason = Problem, o.Reason
			step.Text = fmt.Sprintf("no speaker has written about it; the plan says %s: %s", o.Reason, o.Message)
			if o.Reason == lb.Announced {
				step.Do = "wait some seconds; if nothing changes look at " + w.logs("speaker")
			}
		}
		if o.Here != lb.Announced && o.Here != "" {
			why := hindrance(hindered, node, o.Here)
			nodes[why] = append(nodes[why], node)
		}
	}
	// The step about endpoints, or about the sessions, is closer to the cause.
	step.isSymptom = slices.Contains([]lb.Reason{lb.NoServingEndpoint, lb.PortNotServed, lb.NoSession}, step.Reason)
	if step.Verdict == Problem && step.Reason == lb.NoEligibleNode {
		step.Do = w.unbar(name, nodes)
	}
	if len(nodes) == 1 && step.Verdict == Problem {
		return step // of all nodes the same is true
	}
	for _, reason := range slices.Sorted(maps.Keys(nodes)) {
		step.Details = append(step.Details, fmt.Sprintf("not by %s: %s", lb.SomeOf(nodes[reason]), reason))
	}
	return step
}

// hindrance returns why a node may not announce the Service; if it may, why it does not.
func hindrance(hindered map[lb.Reason][]string, node string, otherwise lb.Reason) lb.Reason {
	for _, reason := range slices.Sorted(maps.Keys(hindered)) {
		if slices.Contains(hindered[reason], node) {
			return reason
		}
	}
	return otherwise
}

// unbar returns what to do so that a node may announce the Service: about the reason of the most nodes.
func (w *why) unbar(protocol string, nodes map[lb.Reason][]string) string {
	var best lb.Reason
	for _, reason := range slices.Sorted(maps.Keys(nodes)) {
		if reason.Remedy() != "" && len(nodes[reason]) > len(nodes[best]) {
			best = reason
		}
	}
	if best == "" {
		return ""
	}
	remedy := best.Remedy()
	if best == lb.NodeNotSelected {
		remedy = "correct nodeSelectors of the advertisements for " + protocol + ", or label a node as they ask"
		isUnmatched := func(node string) bool {
			return !lb.MatchesAny(w.state.Services[0].NodeSelectors, w.state.Nodes[node].Labels)
		}
		if len(w.state.Services[0].NodeSelectors) > 0 && slices.ContainsFunc(nodes[best], isUnmatched) {
			remedy = "correct the node selector of the Service (" + config.AnnotationNodeSelector +
				"), or label a node as it asks"
		}
	}
	return fmt.Sprintf("for node %s (%s): %s", lb.SomeOf(nodes[best]), best, remedy)
}

// announcements also show the sessions over which routes would go.
func (w *why) announcements() {
	var byL2, byBGP map[lb.Reason][]string
	if w.verdicts != nil {
		byL2, byBGP = plan.Hindrances(w.state, w.state.Services[0])
	}
	l2 := w.announcement(
		"layer 2",
		v1beta1.ConditionAnnouncedL2,
		byL2,
		func(v plan.Verdict) plan.Outcome { return v.L2 },
	)
	bgp := w.announcement(
		"BGP",
		v1beta1.ConditionAnnouncedBGP,
		byBGP,
		func(v plan.Verdict) plan.Outcome { return v.BGP },
	)
	if l2.Verdict == "" && bgp.Verdict == "" && len(config.StatusAddresses(w.object)) > 0 {
		l2 = Step{
			Name:    "announcement",
			Verdict: Unseen,
			Text:    "nothing is known of it: advertisements could not be read",
		}
		if len(w.state.Services) > 0 {
			l2.Verdict, l2.Reason, l2.Text = Problem, lb.NoAdvertisement,
				"no L2Advertisement or BGPAdvertisement selects its pool and it"
		}
	}
	// The owner says so in its condition; it announces all the same, as a router may have a route to the link.
	if l2.Verdict == OK && strings.Contains(l2.Text, string(lb.NoSubnet)+":") {
		l2.Verdict, l2.Reason = map[bool]Verdict{true: Note, false: Problem}[bgp.Verdict == OK], lb.NoSubnet
	}
	w.report.add(l2)
	for _, p := range w.Objects.Peers {
		if s := w.session(p); bgp.Verdict != "" &&
			s.Verdict != "" &&
			s.Reason != lb.NoNodeSelected { // which concerns no node that could announce
			if bgp.Reason != lb.NoSession {
				s.Verdict = Note // the routes go out all the same, or lack something else
			}
			w.report.add(s)
		}
	}
	w.report.add(bgp)
}

// session returns the step of a peer of which not all sessions are up, with the speakers' own words; none if all are.
func (s Snapshot) session(p *v1beta1.BGPPeer) Step {
	step := conditionStep("session", p.Status.Conditions, v1beta1.ConditionEstablished)
	if step.Verdict != Problem {
		return Step{}
	}
	step.Text = "BGPPeer " + p.Name + ": " + step.Text
	for _, one := range s.sessions("", p.Name) {
		if one.Verdict == Problem {
			step.Details, step.Do = append(step.Details, one.Text), cmp.Or(step.Do, one.Do)
		}
	}
	return step.bound()
}

func (w *why) filter() {
	step := conditionStep("filter", w.object.Status.Conditions, v1beta1.ConditionFiltered)
	switch {
	case step.Reason == lb.FilterNotEnforceable:
		step.Verdict = Note // if that keeps it from being announced, the announcement is the problem
	case step.Verdict == "" && w.Options.OtherDataPath:
		step.Verdict, step.Text = OK, "Holdfast does not filter: another program than kube-proxy delivers (dataPath: Other)"
	case step.Verdict == "":
		step.Verdict, step.Text = OK, "every client may connect to the declared ports"
	}
	if shut := w.shut(); shut != "" && step.Verdict != Problem {
		step.Verdict, step.Reason = Problem, lb.NoSourceAllowed
		step.Text = fmt.Sprintf(
			"no client may connect by %s: every source range of the Service and its pool is of the other family",
			shut,
		)
		step.Do = fmt.Sprintf(
			"add source ranges of %[1]s to the list that has none, or take %[1]s out of spec.ipFamilies",
			shut,
		)
	}
	w.report.add(step)
	w.fault("filter on the node", v1beta1.ConditionFilterEnforced, Problem)
}

// egress shows whether pods send from the addresses of a Service that asks for it.
func (w *why) egress() {
	if !config.AsksEgress(w.object) {
		return
	}
	step := conditionStep("egress", w.object.Status.Conditions, v1beta1.ConditionEgress)
	if step.Verdict == "" {
		step.Verdict, step.Reason = Problem, lb.EgressUnavailable
		step.Text = "the controller has not written whether pods send from its addresses"
		step.Do = "wait some seconds; if nothing changes look at " + w.logs("controller")
	}
	step.isSymptom = len(config.StatusAddresses(w.object)) == 0
	w.report.add(step)
}

// shut returns a family of the Service in which no client may connect, though clients of the other family may; "" if
// there is none.
func (w *why) shut() lb.Family {
	isOpen := map[lb.Family]bool{}
	for _, f := range plan.Frontends(w.state) {
		family := lb.FamilyOf(f.Address)
		isOpen[family] = isOpen[family] || !f.Restricted || len(f.Allow) > 0
	}
	for _, family := range []lb.Family{lb.IPv4, lb.IPv6} {
		if open, isServed := isOpen[family]; isServed && !open && len(isOpen) > 1 {
			return family
		}
	}
	return ""
}

// nodes shows the problems of nodes that announce the Service, and kube-proxy's among them.
func (w *why) nodes() {
	served := meta.IsStatusConditionTrue(w.object.Status.Conditions, v1beta1.ConditionAnnouncedL2)
	w.report.add(w.problems(func(node string) Verdict {
		return map[bool]Verdict{true: Problem, false: Note}[w.announces(node) && !served]
	})...)
}

// maxAsked bounds the speakers whose pages explain a Service.
const maxAsked = 16

// asked returns the speakers whose pages explain the Service: first those that announce it by the plan, then others,
// because they know links and lost packets too.
func (w *why) asked() []*corev1.Pod {
	pods, order := slices.Clone(w.Pods), []bool{true, false}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Compare(
			slices.Index(order, w.announces(a.Spec.NodeName)),
			slices.Index(order, w.announces(b.Spec.NodeName)),
		)
	})
	return pods[:min(len(pods), maxAsked)]
}

// others returns the speakers that were asked, and do not announce the Service: its addresses are on the wire for them.
func (w *why) others() []*corev1.Pod {
	return slices.DeleteFunc(w.asked(), func(pod *corev1.Pod) bool {
		return w.Daemons[pod.Name] == nil ||
			w.page(pod).Verdict != ""
	})
}

// page makes the step of a speaker from its /debug/state; none if it does not announce the Service.
func (w *why) page(pod *corev1.Pod) Step {
	// What is off has another type in the page, and stays zero here.
	var page struct {
		Layer2    lb.Layer2
		Filter    any
		Relay     struct{ Relays []lb.Relay }
		Unserved  []string
		HeadStart bool
		KubeProxy string
	}
	step, announces := Step{Name: "speaker " + pod.Spec.NodeName, Verdict: OK}, w.announces(pod.Spec.NodeName)
	if w.Daemons[pod.Name] == nil && announces {
		return Step{
			Name:    step.Name,
			Verdict: Unseen,
			Text:    "its page was not read: " + cmp.Or(w.Silent[pod.Name], "the bundle lacks it"),
		}
	}
	_ = json.Unmarshal(w.Daemons[pod.Name], &page)
	ours := func(a netip.Addr) bool { return slices.Contains(config.StatusAddresses(w.object), a) }
	filter, on := page.Filter.(map[string]any)
	enforced, waits := filter["Enforced"] == true, slices.Contains(page.Unserved, w.key.String())
	well := !waits && (enforced || !on)
	for _, a := range page.Layer2.Addresses {
		if ours(a.Address) {
			step.Text += fmt.Sprintf("%s is %s on %s; ", a.Address, a.Phase, lb.SomeOf(a.Links))
			announces, well = true, well && a.Answered
		}
	}
	for _, r := range page.Relay.Relays {
		if ours(r.Address) {
			step.Text += fmt.Sprintf("older connections to %s are relayed to node %s; ", r.Address, r.Former)
		}
	}
	step.Text += fmt.Sprintf(
		"filter on: %t, in force: %t; head start in force: %t; kube-proxy: %s; endpoints here wait for it, by its health "+
			"port: %t",
		on,
		enforced,
		page.HeadStart,
		page.KubeProxy,
		waits,
	)
	if !well {
		step.Verdict, step.Do = Problem, "look at kubectl -n "+w.Namespace+" logs "+pod.Name
	}
	if !announces {
		return Step{}
	}
	return step
}

// endpoints shows where a packet can go in the end, by family and port.
func (w *why) endpoints() {
	step := Step{Name: "endpoints", Verdict: Problem, Reason: lb.NoServingEndpoint}
	all, nodes, lacks := w.serving()
	pods := fmt.Sprintf(
		"kubectl -n %s describe pods -l %s",
		w.key.Namespace,
		labels.FormatLabels(w.object.Spec.Selector),
	)
	switch {
	case all > 0 && len(nodes) == 0 && lacks == nil:
		step.Text = fmt.Sprintf("none of %d can serve: no pod is ready", all)
		step.Do = "make the pods ready: " + pods
	case lacks != nil:
		if len(nodes) > 0 {
			step.Reason = ""
		}
		step.Text, step.Do = lacks[0].Text, lacks[0].Do
		for _, lack := range lacks[1:] {
			step.Details = append(step.Details, lack.Text)
		}
	case len(nodes) > 0:
		step.Verdict, step.Reason, step.Text = OK, "", fmt.Sprintf("pods on %s can serve", lb.SomeOf(nodes))
		if w.object.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			step.Text += "; externalTrafficPolicy is Local, so that no other node announces"
		}
	case len(w.object.Spec.Selector) == 0:
		step.Text, step.Do = "there are none, and the Service has no selector: something else must write its EndpointSlices",
			"write an EndpointSlice"
	default:
		step.Text = "there are none: no pod has the labels of spec.selector"
		step.Do = "correct spec.selector, or start pods with the labels " + labels.FormatLabels(w.object.Spec.Selector)
	}
	w.report.add(w.seen(step.bound(), "they", Slices))
}

// serving returns how many endpoints the Service has, the nodes of those that serve one of its ports, and the families
// and ports that no endpoint serves although some pod is ready.
func (w *why) serving() (all int, nodes []string, lacks []Step) {
	var own []*discoveryv1.EndpointSlice
	hasReady := map[lb.Family]bool{}
	for _, slice := range w.Objects.EndpointSlices {
		if slice.Namespace != w.key.Namespace || slice.Labels[discoveryv1.LabelServiceName] != w.key.Name {
			continue
		}
		own = append(own, slice)
		all += len(slice.Endpoints)
		if slices.ContainsFunc(slice.Endpoints, isReady) {
			hasReady[lb.Family(slice.AddressType)] = true
		}
	}

	served := w.Options.Served(w.object, own)
	for _, family := range w.families(hasReady) {
		nodes = append(nodes, served.ServingNodes(family)...)
		if served.ServingAnywhere(family) {
			nodes = append(nodes, "no node")
		}
		switch {
		case w.Options.OtherDataPath, served.IgnoredByKubeProxy:
			// Another program than kube-proxy may read slices in its own way; what kube-proxy ignores has a condition.
		case hasReady[family]:
			for i, p := range served.Ports {
				if _, isServed := served.PortNodes(family, p); !isServed {
					lacks = append(lacks, w.unnamed(family, w.object.Spec.Ports[i]))
				}
			}
		case len(hasReady) > 0:
			lacks = append(lacks, Step{Text: fmt.Sprintf("no pod has an %s address", family),
				Do: fmt.Sprintf("take %[1]s out of spec.ipFamilies, or run pods with addresses of %[1]s", family)})
		}
	}
	slices.Sort(nodes)
	return all, slices.Compact(nodes), lacks
}

// isReady reports whether an endpoint is ready, for whichever port.
func isReady(e discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }

// families are those in which pods must serve: of a proxied Service the first that has ready pods.
func (w *why) families(hasReady map[lb.Family]bool) (out []lb.Family) {
	for _, family := range w.object.Spec.IPFamilies {
		out = append(out, lb.Family(family))
	}
	if !meta.IsStatusConditionTrue(w.object.Status.Conditions, v1beta1.ConditionProxied) {
		return out
	}
	if first := slices.IndexFunc(out, func(f lb.Family) bool { return hasReady[f] }); first >= 0 {
		return out[first : first+1]
	}
	return out
}

// unnamed says why no endpoint serves a port in a family in which pods are ready.
func (w *why) unnamed(family lb.Family, p corev1.ServicePort) Step {
	selector := labels.FormatLabels(w.object.Spec.Selector)
	switch name := p.TargetPort.StrVal; {
	case len(w.object.Spec.Selector) == 0:
		return Step{
			Text: fmt.Sprintf(
				"no EndpointSlice of %s has the name %q and a number for port %d",
				family,
				p.Name,
				p.Port,
			),
			Do: fmt.Sprintf("give the port the name %q in the EndpointSlices", p.Name),
		}
	case name == "":
		return Step{Text: fmt.Sprintf("port %d is in no EndpointSlice of %s", p.Port, family),
			Do: "wait some seconds; if nothing changes look at the log of kube-controller-manager"}
	default:
		return Step{
			Text: fmt.Sprintf(
				"no ready pod with an %s address has a container port named %q, the targetPort of port %d",
				family,
				name,
				p.Port,
			),
			Do: fmt.Sprintf(
				"correct targetPort of port %d, or name a container port %q: kubectl -n %s get pods -l %s -o "+
					"jsonpath='{.items[*].spec.containers[*].ports}'",
				p.Port,
				name,
				w.key.Namespace,
				selector,
			),
		}
	}
}
