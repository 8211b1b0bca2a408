package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

// leaseAge is the age of the controllers' Lease from which no controller leads: a leader renews it sooner.
const leaseAge = 15 * time.Second

// controllerStep makes the step about whether a controller leads. Assigned addresses stay without a controller.
func (s Snapshot) controllerStep(isAssigned bool) Step {
	step := Step{
		Name:    "controller",
		Verdict: OK,
		Text:    "one leads",
	}

	renewed := s.leaseRenewed()
	if s.Now.Sub(renewed) > leaseAge {
		step.Verdict = Note
		if !isAssigned {
			step.Verdict = Problem
		}

		step.Text = "no controller has ever been leader in namespace " + s.Namespace
		if !renewed.IsZero() {
			date := renewed.UTC().Format(time.RFC3339)
			step.Text = fmt.Sprintf("none leads since %s: addresses stay, and none is assigned", date)
		}

		step.Do = "look at kubectl -n " + s.Namespace + " describe deployment,pod for why no controller runs"
	}

	return s.unlessUnread(step, "its Lease", Leases)
}

// leaseRenewed returns when a controller last renewed the Lease; zero if no controller did.
func (s Snapshot) leaseRenewed() time.Time {
	var renewed time.Time
	for _, l := range s.Leases {
		if l.Spec.RenewTime != nil {
			renewed = l.Spec.RenewTime.Time
		}
	}

	return renewed
}

// daemonLabels returns the label selector of the pods of a component.
func daemonLabels(component string) string {
	return "app.kubernetes.io/name=holdfast,app.kubernetes.io/component=" + component
}

// logs returns the command that shows the logs of the pods of a component.
func (s Snapshot) logs(component string) string {
	return fmt.Sprintf("kubectl -n %s logs -l %s", s.Namespace, daemonLabels(component))
}

// speakersStep makes the step about whether all speakers are ready.
func (s Snapshot) speakersStep() Step {
	step := s.readinessStep()
	unready := s.unreadySpeakers()
	for _, node := range slices.Sorted(maps.Keys(unready)) {
		step.Details = append(step.Details, fmt.Sprintf("node %s: %s", node, unready[node]))
	}

	if step.Verdict == OK && len(unready) > 0 {
		step = s.unreadyStep(step, s.Speakers.Status)
	}

	return s.unlessUnread(step.withFewDetails(), "the speakers' pods", Pods, Speakers)
}

// readinessStep makes the step about the DaemonSet of the speakers.
func (s Snapshot) readinessStep() Step {
	step := Step{Name: "speakers", Verdict: Problem}
	if s.Speakers == nil {
		step.Text = "namespace " + s.Namespace + " has no DaemonSet of speakers: no node announces anything"
		step.Do = "install Holdfast, or name its namespace by --holdfast-namespace"
		return step
	}

	status := s.Speakers.Status
	switch {
	case status.NumberReady == 0:
		step.Text = "no speaker is ready: what the conditions say of announcements is old"
		step.Do = s.describeSpeakers()
	case status.NumberReady < status.DesiredNumberScheduled:
		return s.unreadyStep(step, status)
	default:
		step.Verdict = OK
		step.Text = fmt.Sprintf("all %d are ready", status.NumberReady)
	}

	return step
}

// unreadyStep returns the step with the note that not all speakers are ready.
func (s Snapshot) unreadyStep(step Step, status appsv1.DaemonSetStatus) Step {
	step.Verdict = Note
	step.Text = fmt.Sprintf("%d of %d are ready", status.NumberReady, status.DesiredNumberScheduled)
	step.Do = "find out why a speaker is not ready: " + s.describeSpeakers()
	return step
}

// describeSpeakers returns how to find out why a speaker is not ready.
func (s Snapshot) describeSpeakers() string {
	labels := daemonLabels("speaker")
	return fmt.Sprintf("kubectl -n %s describe pod -l %s, and the log of the pod", s.Namespace, labels)
}

// addNodeProblems adds the problems of all nodes. They are problems of the Service only on nodes that announce it, if
// no other node announces it by layer 2.
func (e *serviceExplanation) addNodeProblems() {
	isAnnounced := meta.IsStatusConditionTrue(e.object.Status.Conditions, v1beta1.ConditionAnnouncedL2)
	steps := e.nodeProblems(func(node string) Verdict {
		if e.announces(node) && !isAnnounced {
			return Problem
		}
		return Note
	})

	e.report.add(steps...)
}

// maxAsked bounds the speakers whose pages explain a Service.
const maxAsked = 16

// podsToAsk returns the speakers whose pages explain the Service: first the speakers that announce it by the plan. The
// others know links and lost packets too.
func (e *serviceExplanation) podsToAsk() []*corev1.Pod {
	pods := slices.Clone(e.Pods)
	rank := func(pod *corev1.Pod) int {
		if e.announces(pod.Spec.NodeName) {
			return 0
		}
		return 1
	}

	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Compare(rank(a), rank(b))
	})

	return pods[:min(len(pods), maxAsked)]
}

// podsToProbe returns the asked speakers that do not announce the Service. Only they can ask for its addresses by the
// network.
func (e *serviceExplanation) podsToProbe() []*corev1.Pod {
	return slices.DeleteFunc(e.podsToAsk(), func(pod *corev1.Pod) bool {
		isUnread := e.Daemons[pod.Name] == nil
		return isUnread || e.pageStep(pod).Verdict != ""
	})
}

// addSpeakerPages adds what the speakers report, if they were asked.
func (e *serviceExplanation) addSpeakerPages() {
	if e.Daemons == nil {
		return
	}

	for _, pod := range e.podsToAsk() {
		e.report.add(e.pageStep(pod))
	}

	e.report.add(e.unread)
}

// speakerPage is the part of a speaker's /debug/state that concerns a Service. A part that is off has another type in
// the page, and stays zero here.
type speakerPage struct {
	Layer2    lb.Layer2
	Filter    any
	Relay     struct{ Relays []lb.Relay }
	Unserved  []string
	HeadStart bool
	KubeProxy string
}

// pageStep makes the step of a speaker from its page. It has no verdict if the speaker does not announce the Service.
func (e *serviceExplanation) pageStep(pod *corev1.Pod) Step {
	step := Step{Name: "speaker " + pod.Spec.NodeName, Verdict: OK}
	isAnnouncing := e.announces(pod.Spec.NodeName)
	if e.Daemons[pod.Name] == nil && isAnnouncing {
		step.Verdict = Unseen
		step.Text = "its page was not read: " + cmp.Or(e.Silent[pod.Name], "the bundle lacks it")
		return step
	}

	var page speakerPage
	_ = json.Unmarshal(e.Daemons[pod.Name], &page)
	addresses := config.StatusAddresses(e.object)
	areAnswered := true
	for _, a := range page.Layer2.Addresses {
		if slices.Contains(addresses, a.Address) {
			step.Text += fmt.Sprintf("%s is %s on %s; ", a.Address, a.Phase, lb.SomeOf(a.Links))
			areAnswered = areAnswered && a.Answered
			isAnnouncing = true
		}
	}

	if !isAnnouncing {
		return Step{}
	}

	for _, r := range page.Relay.Relays {
		if slices.Contains(addresses, r.Address) {
			step.Text += fmt.Sprintf("older connections to %s are relayed to node %s; ", r.Address, r.Former)
		}
	}

	filter, hasFilter := page.Filter.(map[string]any)
	isEnforced := filter["Enforced"] == true
	isWaiting := slices.Contains(page.Unserved, e.key.String())
	step.Text += fmt.Sprintf(
		"filter on: %t, in force: %t; head start in force: %t; kube-proxy: %s; endpoints here wait for it, by its health "+
			"port: %t",
		hasFilter,
		isEnforced,
		page.HeadStart,
		page.KubeProxy,
		isWaiting,
	)

	isFiltered := isEnforced || !hasFilter
	isWell := areAnswered && isFiltered && !isWaiting
	if !isWell {
		step.Verdict = Problem
		step.Do = "look at kubectl -n " + e.Namespace + " logs " + pod.Name
	}

	return step
}
