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

// asked returns the speakers whose pages explain the Service: first those that announce it by the plan, then others, because they
// know links and lost packets too.
func (w *why) asked() []*corev1.Pod {
	pods := slices.Clone(w.Pods)
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		return map[bool]int{true: -1}[w.announcers[a.Spec.NodeName]] - map[bool]int{true: -1}[w.announcers[b.Spec.NodeName]]
	})
	return pods[:min(len(pods), maxAsked)]
}

// others returns the speakers that were asked, and do not announce the Service: its addresses are on the wire for them.
func (w *why) others() []*corev1.Pod {
	return slices.DeleteFunc(w.asked(), func(pod *corev1.Pod) bool { return w.Daemons[pod.Name] == nil || w.page(pod).Verdict != "" })
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
