package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
)

// why is the explanation of one Service.
type why struct {
	Snapshot
	object *corev1.Service
	key    lb.Key
	// state has this Service alone, as the daemons read it, or none if it is not theirs to serve or too little could be read.
	state lb.State
	// assignment is what the controller would decide now; nil as state.Services.
	assignment *ipam.Assignment
	report     Report
}

// Service explains one Service, in the order in which a packet to its address meets the decisions.
func (s Snapshot) Service(key lb.Key) Report {
	w := why{Snapshot: s, key: key, report: Report{Subject: "Service " + key.String()}}
	if w.object = s.service(key); w.object == nil {
		step := Step{Name: "Service", Verdict: Problem, Text: "it does not exist", Do: "look at kubectl get services --all-namespaces: no Service has this name"}
		if text, unread := s.Unread[Services]; unread {
			step = Step{Name: "Service", Verdict: Unseen, Text: "it cannot be read: " + text}
		}
		w.report.add(step)
		return w.report.conclude()
	}
	if !w.class() {
		return w.report.conclude()
	}
	w.compute()
	w.controller()
	w.address()
	w.speakers()
	w.layer2()
	w.bgp()
	w.conflicts()
	w.filter()
	w.nodes()
	w.endpoints()
	return w.report.conclude()
}

// class reports whether the Service is Holdfast's to serve.
func (w *why) class() bool {
	step, spec := Step{Name: "class", Verdict: Problem}, w.object.Spec
	serves := fmt.Sprintf("Holdfast serves the class %s", w.Options.LoadBalancerClass)
	if w.Options.Default {
		serves += " and Services without one"
	}
	switch class := spec.LoadBalancerClass; {
	case spec.Type != corev1.ServiceTypeLoadBalancer:
		step.Text = fmt.Sprintf("its type is %s: only type LoadBalancer gets an external address", spec.Type)
		step.Do = "set spec.type: LoadBalancer"
	case w.object.DeletionTimestamp != nil:
		step.Text = "it is being deleted, so that its addresses go"
		if len(w.object.Finalizers) > 0 {
			step.Details = []string{"finalizers that it waits for: " + strings.Join(w.object.Finalizers, ", ")}
		}
	case w.Options.Serves(w.object):
		step.Verdict, step.Text = OK, serves
		if len(w.unread(Controller)) > 0 {
			step.Text += " by default: its settings could not be read"
		}
	case class == nil:
		step.Text = "it names no class, and " + serves + " only"
		step.Do = "create the Service again with spec.loadBalancerClass: " + w.Options.LoadBalancerClass + ", or install Holdfast as the default"
	default:
		step.Text = fmt.Sprintf("its class is %s, and %s: another load balancer has to serve it", *class, serves)
		step.Do = "create the Service again with spec.loadBalancerClass: " + w.Options.LoadBalancerClass + ": the field cannot be changed"
	}
	w.report.add(step)
	return step.Verdict == OK
}

// compute decides about the Service as the daemons would, if everything could be read.
func (w *why) compute() {
	if len(w.unread(Services, Pools, Nodes, Slices, L2Ads, BGPAds, Peers, Pods)) > 0 {
		return
	}
	state, _ := w.compile()
	for _, a := range ipam.Assign(state).Assignments {
		if a.Key == w.key {
			w.assignment = a
		}
	}
	w.state = state
	w.state.Services = nil
	for _, s := range state.Services {
		if s.Key == w.key {
			w.state.Services = []lb.Service{s}
		}
	}
}

// condition returns the step that a condition of the Service makes; false without the condition.
func (w *why) condition(name, condition string) (Step, bool) {
	return conditionStep(name, w.object.Status.Conditions, condition)
}

// leaseTime is how old the Lease of a controller that leads may be.
const leaseTime = 15 * time.Second

// controller reports whether one leads. What it wrote stands without it.
func (w *why) controller() {
	step, problem := Step{Name: "controller", Verdict: OK}, Note
	if !meta.IsStatusConditionTrue(w.object.Status.Conditions, v1beta1.ConditionAddressAssigned) {
		problem = Problem
	}
	switch renewed := w.renewed(); {
	case len(w.unread(Leases)) > 0:
		step.Verdict, step.Text = Unseen, "its Lease could not be read: "+w.Unread[Leases]
	case renewed.IsZero():
		step.Verdict, step.Text = problem, "none has ever led in namespace "+w.Namespace
		step.Do = "look at kubectl -n " + w.Namespace + " describe deployment,pod"
	case w.Now.Sub(renewed) > leaseTime:
		step.Verdict, step.Text = problem, fmt.Sprintf("none leads since %s: addresses stay, and none is assigned", renewed.UTC().Format(time.RFC3339))
		step.Do = "look at kubectl -n " + w.Namespace + " describe deployment,pod for why no controller runs"
	default:
		step.Text = "one leads"
	}
	w.report.add(step)
}

// renewed is when the leader last renewed its Lease; zero if none ever did.
func (s Snapshot) renewed() time.Time {
	for _, l := range s.Leases {
		if l.Spec.RenewTime != nil {
			return l.Spec.RenewTime.Time
		}
	}
	return time.Time{}
}

func (w *why) address() {
	step, known := w.condition("address", v1beta1.ConditionAddressAssigned)
	switch {
	case known && step.Verdict == OK && step.Reason == lb.AddressKept:
		step.Verdict = Note
	case !known && w.assignment != nil:
		step.Verdict, step.Reason = Problem, w.assignment.Reason
		if step.Text = w.assignment.Message; len(w.assignment.Addresses) > 0 {
			step.Text = fmt.Sprintf("the controller has not written yet that it gets %s", lb.SomeOf(w.assignment.Addresses))
		}
	case !known:
		step.Verdict, step.Text = Problem, "the controller has not decided about it"
	}
	w.report.add(step)
	for _, c := range []string{v1beta1.ConditionWritten, v1beta1.ConditionAnnotationsHonoured} {
		if step, known := w.condition("annotations", c); known && step.Verdict != OK {
			if step.Verdict = Note; c == v1beta1.ConditionWritten {
				step.Name, step.Verdict = "status", Problem
			}
			w.report.add(step)
		}
	}
}

// speakers shows where none runs.
func (w *why) speakers() {
	step := Step{Name: "speakers", Verdict: OK}
	waiting := w.waitingSpeakers()
	for _, p := range waiting {
		step.Details = append(step.Details, fmt.Sprintf("node %s: %s", p.node, p.why))
	}
	step.bound()
	const do = "kubectl -n %s describe pod -l app.kubernetes.io/name=holdfast,app.kubernetes.io/component=speaker, and the log of the pod"
	switch {
	case len(w.unread(Pods, Speakers)) > 0:
		step.Verdict, step.Text = Unseen, "the speakers' pods could not be read: "+w.Unread[w.unread(Pods, Speakers)[0]]
	case w.Speakers == nil:
		step.Verdict, step.Text = Problem, "namespace "+w.Namespace+" has no DaemonSet of speakers: no node announces anything"
		step.Do = "install Holdfast, or name its namespace by --holdfast-namespace"
	case w.Speakers.Status.NumberReady == 0:
		step.Verdict, step.Text, step.Do = Problem, "no speaker is ready: what the conditions say of announcements is old", fmt.Sprintf(do, w.Namespace)
	case w.Speakers.Status.NumberReady < w.Speakers.Status.DesiredNumberScheduled || len(waiting) > 0:
		step.Verdict, step.Do = Note, "find out why a speaker is not ready: "+fmt.Sprintf(do, w.Namespace)
		step.Text = fmt.Sprintf("%d of %d are ready", w.Speakers.Status.NumberReady, w.Speakers.Status.DesiredNumberScheduled)
	default:
		step.Text = fmt.Sprintf("all %d are ready", w.Speakers.Status.NumberReady)
	}
	w.report.add(step)
}

// verdicts returns the verdict of each known node, by its own plan.
func (w *why) verdicts() map[string]plan.Verdict {
	out := map[string]plan.Verdict{}
	if len(w.state.Services) == 0 || len(w.state.Services[0].Addresses) == 0 {
		return out
	}
	for _, node := range slices.Sorted(maps.Keys(w.state.Nodes)) {
		out[node] = plan.ForNode(node, w.state).Verdicts[0]
	}
	return out
}

// others groups the nodes that do not announce by their reasons, in a line each.
func others(verdicts map[string]plan.Verdict, of func(plan.Verdict) lb.Reason) (out []string) {
	nodes := map[lb.Reason][]string{}
	for _, node := range slices.Sorted(maps.Keys(verdicts)) {
		if reason := of(verdicts[node]); reason != lb.Announced && reason != "" {
			nodes[reason] = append(nodes[reason], node)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(nodes)) {
		out = append(out, fmt.Sprintf("not by %s: %s", lb.SomeOf(nodes[reason]), reason))
	}
	return out
}

// announcement makes the step of one protocol from its condition, or from the plans if no speaker wrote one. It reports false
// if no advertisement of the protocol selects the Service.
func (w *why) announcement(name, condition string, of func(plan.Verdict) plan.Outcome) (Step, bool) {
	step, known := w.condition(name, condition)
	verdicts := w.verdicts()
	for _, node := range slices.Sorted(maps.Keys(verdicts)) {
		if o := of(verdicts[node]); !known && o.Selected {
			step.Verdict, step.Reason, step.Text, known = Problem, o.Reason, "no speaker has written about it; the plan says "+string(o.Reason)+": "+o.Message, true
		}
	}
	if step.Details = others(verdicts, func(v plan.Verdict) lb.Reason { return of(v).Here }); len(step.Details) == 1 && step.Verdict == Problem {
		step.Details = nil // of all nodes the same is true
	}
	return step, known
}

func (w *why) layer2() {
	if step, selected := w.announcement("layer 2", v1beta1.ConditionAnnouncedL2, func(v plan.Verdict) plan.Outcome { return v.L2 }); selected {
		w.report.add(step)
		return
	}
	if meta.FindStatusCondition(w.object.Status.Conditions, v1beta1.ConditionAnnouncedBGP) != nil || len(addresses(w.object)) == 0 {
		return
	}
	step := Step{Name: "announcement", Verdict: Unseen, Text: "nothing is known of it: advertisements could not be read"}
	if len(w.state.Services) > 0 {
		step = Step{Name: "announcement", Verdict: Problem, Reason: lb.NoAdvertisement, Text: "no L2Advertisement or BGPAdvertisement selects its pool and it",
			Do: "create an L2Advertisement or a BGPAdvertisement for the pool"}
	}
	w.report.add(step)
}

// bgp also shows the sessions over which the routes would go.
func (w *why) bgp() {
	step, selected := w.announcement("BGP", v1beta1.ConditionAnnouncedBGP, func(v plan.Verdict) plan.Outcome { return v.BGP })
	if !selected {
		return
	}
	for _, p := range w.Objects.Peers {
		if s, broken := w.session(p); broken && s.Reason != lb.NoNodeSelected { // which concerns no node that could announce
			if step.Reason != lb.NoSession {
				s.Verdict = Note // the routes go out all the same, or lack something else
			}
			w.report.add(s)
		}
	}
	w.report.add(step)
}

// session returns the step of a peer of which not all sessions are up, with the speakers' own words.
func (s Snapshot) session(p *v1beta1.BGPPeer) (Step, bool) {
	step, known := conditionStep("session", p.Status.Conditions, v1beta1.ConditionEstablished)
	if !known || step.Verdict == OK {
		return step, false
	}
	nodes := map[string][]string{}
	for _, state := range s.States {
		for _, one := range state.Status.Sessions {
			if one.Peer == p.Name && one.LastError != "" {
				nodes[one.LastError] = append(nodes[one.LastError], state.Name)
			}
		}
	}
	for _, text := range slices.Sorted(maps.Keys(nodes)) {
		if step.Do = "BGPPeer " + p.Name + ": " + text; !strings.Contains(step.Text, text) {
			step.Details = append(step.Details, fmt.Sprintf("on %s: %s", lb.SomeOf(nodes[text]), text))
		}
	}
	step.Text = "BGPPeer " + p.Name + ": " + step.Text
	step.bound()
	return step, true
}

// conflicts shows foreign machines that claim one of the addresses.
func (w *why) conflicts() {
	w.report.Steps = append(w.report.Steps, w.claims(func(claimed string) bool {
		return slices.ContainsFunc(addresses(w.object), func(a netip.Addr) bool { return a.String() == claimed })
	})...)
}

func (w *why) filter() {
	step, known := w.condition("filter", v1beta1.ConditionFiltered)
	if !known {
		step.Verdict, step.Text = OK, "every client may connect to the declared ports"
	}
	w.report.add(step)
	if step, known := w.condition("filter on the node", v1beta1.ConditionFilterEnforced); known && step.Verdict != OK {
		w.report.add(step)
	}
}

// nodes shows the problems of nodes that announce the Service, and kube-proxy's among them.
func (w *why) nodes() {
	announcers := map[string]bool{}
	for _, v := range w.verdicts() {
		for _, a := range v.L2.Announcers {
			announcers[a.Node] = true
		}
		for _, n := range v.BGP.Nodes {
			announcers[n] = true
		}
	}
	for _, s := range w.States {
		for _, p := range s.Status.Problems {
			step := Step{Name: "node " + s.Name, Verdict: Note, Reason: lb.Reason(p.Reason), Text: p.Message}
			if announcers[s.Name] && !meta.IsStatusConditionTrue(w.object.Status.Conditions, v1beta1.ConditionAnnouncedL2) {
				step.Verdict = Problem
			}
			w.report.add(step)
		}
	}
}

// endpoints shows where a packet can go in the end.
func (w *why) endpoints() {
	step := Step{Name: "endpoints", Verdict: OK}
	serving, all := map[string]int{}, 0
	for _, slice := range w.Objects.EndpointSlices {
		if slice.Namespace != w.key.Namespace || slice.Labels["kubernetes.io/service-name"] != w.key.Name {
			continue
		}
		for _, e := range slice.Endpoints {
			all++
			if e.Conditions.Serving == nil || *e.Conditions.Serving {
				node := "no node"
				if e.NodeName != nil {
					node = *e.NodeName
				}
				serving[node]++
			}
		}
	}
	switch {
	case len(w.unread(Slices)) > 0:
		step.Verdict, step.Text = Unseen, "they could not be read: "+w.Unread[Slices]
	case len(serving) == 0 && all > 0:
		step.Verdict, step.Reason = Problem, lb.NoServingEndpoint
		step.Text = fmt.Sprintf("none of %d can serve: look at the readiness of the pods", all)
		step.Do = fmt.Sprintf("kubectl -n %s describe pods -l %s", w.key.Namespace, labels.FormatLabels(w.object.Spec.Selector))
	case len(serving) == 0:
		step.Verdict, step.Reason = Problem, lb.NoServingEndpoint
		step.Text = "there are none: no pod has the labels of spec.selector"
		step.Do = fmt.Sprintf("correct spec.selector, or start pods with the labels %s", labels.FormatLabels(w.object.Spec.Selector))
		if len(w.object.Spec.Selector) == 0 {
			step.Text, step.Do = "there are none, and the Service has no selector: something else must write its EndpointSlices", "write an EndpointSlice"
		}
	default:
		step.Text = fmt.Sprintf("pods on %s can serve", lb.SomeOf(slices.Sorted(maps.Keys(serving))))
		if w.object.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			step.Text += "; externalTrafficPolicy is Local, so that no other node announces"
		}
	}
	w.report.add(step)
}
