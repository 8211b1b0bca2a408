package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
)

// maxAsked bounds the speakers whose pages explain a Service.
const maxAsked = 16

// Asked returns the speakers whose pages explain a Service: first those that announce it by the plan, then others, because they
// know links and lost packets too.
func (s Snapshot) Asked(namespace, name string) (out []*corev1.Pod) {
	announcers := s.about(namespace, name).announcers
	for _, announces := range []bool{true, false} {
		for _, pod := range s.Pods {
			if announcers[pod.Spec.NodeName] == announces && len(out) < maxAsked {
				out = append(out, pod)
			}
		}
	}
	return out
}

// Others returns the speakers that were asked, and do not announce a Service: its addresses are on the wire for them.
func (s Snapshot) Others(namespace, name string) (out []*corev1.Pod) {
	w := s.about(namespace, name)
	for _, pod := range s.Asked(namespace, name) {
		if s.Daemons[pod.Name] != nil && w.page(pod).Verdict == "" {
			out = append(out, pod)
		}
	}
	return out
}

// pages shows what the speakers do that announce the Service.
func (w *why) pages() {
	if w.Daemons == nil {
		return
	}
	for _, pod := range w.Asked(w.key.Namespace, w.key.Name) {
		w.report.add(w.page(pod))
	}
	w.report.add(w.blind)
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
	step, announces := Step{Name: "speaker " + pod.Spec.NodeName, Verdict: OK}, w.announcers[pod.Spec.NodeName]
	if w.Daemons[pod.Name] == nil && announces {
		return Step{Name: step.Name, Verdict: Unseen, Text: "its page was not read: " + cmp.Or(w.Silent[pod.Name], "the bundle lacks it")}
	}
	_ = json.Unmarshal(w.Daemons[pod.Name], &page)
	ours := func(a netip.Addr) bool { return slices.Contains(addresses(w.object), a) }
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
	step.Text += fmt.Sprintf("filter on: %t, in force: %t; head start in force: %t; kube-proxy: %s; endpoints here wait for it, by its health port: %t",
		on, enforced, page.HeadStart, page.KubeProxy, waits)
	if !well {
		step.Verdict, step.Do = Problem, step.Text+": look at kubectl -n "+w.Namespace+" logs "+pod.Name
	}
	if !announces {
		return Step{}
	}
	return step
}
