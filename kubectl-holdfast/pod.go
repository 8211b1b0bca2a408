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

// podWhy is the explanation of the outgoing connections of one pod.
type podWhy struct {
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
		return s.absent(r.Subject, EgressPods, Step{Name: "pod", Do: do})
	}

	w := &podWhy{Snapshot: s, object: o}
	pod, mayTranslate := config.EgressPod(o)
	w.pod = pod
	r.add(w.exists())
	if !mayTranslate {
		return r.conclude()
	}

	w.state, _ = s.compile()
	r.add(w.decision())
	if w.service != nil {
		for _, a := range pod.Addresses {
			r.add(w.family(a)...)
		}
		r.add(w.announcement(), w.condition(), w.speaker())
	}
	return r.conclude()
}

// exists makes the step about the pod itself.
func (w *podWhy) exists() Step {
	node, step := w.object.Spec.NodeName, Step{Name: "pod", Verdict: Note}
	describe := "kubectl -n " + w.object.Namespace + " describe pod " + w.object.Name
	phase := w.object.Status.Phase
	switch {
	case node == "":
		step.Text, step.Do = "no node runs it yet", describe
	case phase == corev1.PodSucceeded || phase == corev1.PodFailed:
		step.Text = "it has ended, and opens no connections"
	case w.object.Spec.HostNetwork:
		step.Text = "it is on the network of node " + node + ": its connections leave from the node's addresses"
		if len(w.asking()) == 0 {
			step.Verdict = OK
		}
	case len(w.pod.Addresses) == 0:
		step.Text, step.Do = "it runs on node "+node+" and has no address yet", describe
	default:
		step.Verdict, step.Text = OK, fmt.Sprintf("it runs on node %s and has %s", node, lb.SomeOf(w.pod.Addresses))
	}
	return step
}

// asking returns the Services with egress that select the pod.
func (w *podWhy) asking() (out []*corev1.Service) {
	for _, o := range w.Objects.Services {
		isNear := o.Namespace == w.object.Namespace && config.AsksEgress(o) && len(o.Spec.Selector) > 0
		if isNear && labels.SelectorFromSet(o.Spec.Selector).Matches(labels.Set(w.object.Labels)) {
			out = append(out, o)
		}
	}
	return out
}

// decision finds the Service that decides about the pod, and makes the step about it.
func (w *podWhy) decision() Step {
	for key := range lb.MatchEgress(w.state.Services, []lb.Pod{w.pod}).Pods {
		w.service = w.compiled(key)
	}

	others := w.others()
	step := Step{Name: "Service", Verdict: OK, Details: others}
	fromNode := "its connections leave from the address of node " + w.pod.Node
	switch {
	case w.service == nil && len(others) > 0:
		step.Verdict, step.Reason = Problem, lb.EgressUnavailable
		step.Text = "no Service that selects it has an address to send from: " + fromNode
		step.Do = "find out why: kubectl holdfast why " + config.KeyOf(w.asking()[0]).String()
	case w.service == nil:
		step.Text = fmt.Sprintf("no Service with %s selects it: %s", config.AnnotationEgress, fromNode)
	case len(others) > 0:
		step.Verdict, step.Text = Note, "Service "+w.service.Key.String()+" decides, and others select the pod too"
		step.Do = fmt.Sprintf("nothing, if you agree; otherwise remove %s from the others, or correct their selectors",
			config.AnnotationEgress)
	default:
		step.Text = "Service " + w.service.Key.String() + " decides: it is the only one with " + config.AnnotationEgress
	}
	return w.seen(step.bound(), "they", Services)
}

// compiled returns a Service as the daemons read it; nil if it is not Holdfast's to serve.
func (w *podWhy) compiled(key lb.Key) *lb.Service {
	i := slices.IndexFunc(w.state.Services, func(s *lb.Service) bool { return s.Key == key })
	if i < 0 {
		return nil
	}
	return w.state.Services[i]
}

// others returns a sentence about each Service that selects the pod and does not decide about it.
func (w *podWhy) others() (out []string) {
	for _, o := range w.asking() {
		key := config.KeyOf(o)
		s, why := w.compiled(key), "is younger"
		switch {
		case s != nil && s == w.service:
			continue
		case s == nil:
			why = "is not Holdfast's to serve"
		case !s.Egress:
			why = "does not get what it asks for"
		case !s.Sends():
			why = "has no address yet"
		}
		out = append(out, fmt.Sprintf("Service %s selects it and %s", key, why))
	}
	return out
}

// family makes the steps about an address of the pod: what replaces it, and the ports of its node.
func (w *podWhy) family(pod netip.Addr) []Step {
	f := lb.FamilyOf(pod)
	step := Step{Name: string(f), Verdict: OK}
	i := slices.IndexFunc(w.service.Addresses, func(a netip.Addr) bool { return lb.FamilyOf(a) == f })
	if i < 0 {
		step.Verdict, step.Reason = Problem, lb.EgressUnavailable
		step.Text = fmt.Sprintf("new connections of %s are rejected: Service %s has no %s address", pod, w.service.Key, f)
		step.Do = fmt.Sprintf("give the Service an address of %s (spec.ipFamilies), or remove %s from it",
			f, config.AnnotationEgress)
		return []Step{step}
	}

	address := w.service.Addresses[i]
	step.Text = fmt.Sprintf("%s sends from %s", pod, address)
	return []Step{step, w.ports(address)}
}

// ports makes the step about the slice of an address that the pod's node has.
func (w *podWhy) ports(address netip.Addr) Step {
	step := Step{Name: "ports", Verdict: OK}
	i := slices.IndexFunc(w.state.Slices, func(s lb.PortSlice) bool {
		return s.Address == address && s.Node == w.pod.Node && s.Namespace == w.pod.Key.Namespace
	})
	if i >= 0 {
		slice := w.state.Slices[i]
		step.Text = fmt.Sprintf("node %s has the ports %d to %d of %s", slice.Node, slice.First, slice.Last(), address)
	} else {
		step.Verdict, step.Reason = Problem, lb.EgressUnavailable
		step.Text = fmt.Sprintf("node %s has no ports of %s for namespace %s: new connections are rejected",
			w.pod.Node, address, w.pod.Key.Namespace)
		step.Do = "wait some seconds; if nothing changes: kubectl holdfast why " + w.service.Key.String()
	}
	return w.seen(step, "EgressAllocations", Allocations)
}

// announcement makes the step about the nodes that announce the Service, to which answers come.
func (w *podWhy) announcement() Step {
	step := conditionStep("layer 2", w.serviceObject().Status.Conditions, v1beta1.ConditionAnnouncedL2)
	if step.Verdict == "" {
		step.Verdict, step.Reason = Problem, lb.NoAdvertisement
		step.Text = "no node announces Service " + w.service.Key.String() + " by layer 2: new connections are rejected"
	}
	return step
}

// condition makes the step about what the controller says of the Service. It may concern other pods.
func (w *podWhy) condition() Step {
	step := conditionStep("egress", w.serviceObject().Status.Conditions, v1beta1.ConditionEgress)
	switch step.Verdict {
	case "":
		step.Verdict, step.Text = Note, "the controller has not written about the pods of the Service"
		step.Do = "wait some seconds; if nothing changes look at " + w.logs("controller")
	case Problem:
		step.Verdict = Note
		step.Do = "if this concerns the pod: kubectl holdfast why " + w.service.Key.String()
	}
	return step
}

// serviceObject returns the Service that decides.
func (w *podWhy) serviceObject() *corev1.Service {
	return Find(w.Objects.Services, w.service.Key.Namespace, w.service.Key.Name)
}

// speaker makes the step about what the speaker of the pod's node reports.
func (w *podWhy) speaker() Step {
	step := Step{Name: "node " + w.pod.Node, Verdict: OK, Text: "its speaker rejects no connections of the Service's pods"}
	look := "look at kubectl holdfast why node " + w.pod.Node
	state := Find(w.States, "", w.pod.Node)
	if state == nil {
		step.Verdict, step.Do = Problem, look
		step.Text = "no speaker has reported, and a node without a speaker translates nothing"
		return w.seen(step, "SpeakerStates", States)
	}

	status := state.Status
	i := slices.IndexFunc(status.EgressClosed, func(c v1beta1.ClosedEgress) bool {
		return c.Service == w.service.Key.String()
	})
	observed := time.Time{}
	if status.Observed != nil {
		observed = status.Observed.Time
	}
	switch {
	case w.Now.Sub(observed) >= reportAge:
		step.Verdict, step.Do = Note, look
		step.Text = "the last report of its speaker is old: " + observed.UTC().Format(time.RFC3339)
	case i >= 0:
		closed := status.EgressClosed[i]
		step.Verdict, step.Reason = Problem, lb.EgressUnavailable
		step.Text = fmt.Sprintf("its speaker rejects the connections of %d addresses of the Service's pods: %s",
			closed.PodAddresses, strings.TrimSpace(closed.Message))
	case int(status.EgressClosedCount) > len(status.EgressClosed):
		step.Verdict, step.Do = Note, look
		step.Text = fmt.Sprintf("its speaker rejects the connections of %d Services, and names %d others",
			status.EgressClosedCount, len(status.EgressClosed))
	}
	return step
}
