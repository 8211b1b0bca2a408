package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Status reports the whole cluster on one screen: problems first.
func (s Snapshot) Status() Report {
	r := Report{Subject: "Holdfast in namespace " + s.Namespace}
	r.add(s.controllerStep(false))
	r.add(s.speakersStep())
	r.add(s.versionsStep())
	r.add(s.peersStep())
	r.add(s.poolsStep())
	r.add(s.servicesStep())
	r.add(s.nodeProblems(func(string) Verdict { return Problem })...)
	r.add(s.conflictSteps()...)
	r.add(s.invalidSteps()...)

	order := []Verdict{Problem, Note, OK, Unseen}
	rank := func(step Step) int { return slices.Index(order, step.Verdict) }
	slices.SortStableFunc(r.Steps, func(a, b Step) int { return cmp.Compare(rank(a), rank(b)) })
	return r.conclude()
}

// versionsStep makes the step about the images that the daemons run.
func (s Snapshot) versionsStep() Step {
	var images []string
	add := func(daemon string, pod corev1.PodSpec) {
		if len(pod.Containers) > 0 {
			images = append(images, daemon+" "+pod.Containers[0].Image)
		}
	}

	if s.Controller != nil {
		add("controller", s.Controller.Spec.Template.Spec)
	}

	if s.Speakers != nil {
		add("speaker", s.Speakers.Spec.Template.Spec)
	}

	if images == nil {
		return Step{
			Name:    "versions",
			Verdict: Unseen,
			Text:    "they could not be read",
		}
	}

	return Step{
		Name:    "versions",
		Verdict: OK,
		Text:    strings.Join(images, ", "),
	}
}

// peersStep counts the BGP sessions. It has no verdict without BGP.
func (s Snapshot) peersStep() Step {
	all := s.sessionSteps("", "")
	if len(all) == 0 {
		return Step{}
	}

	var down []string
	var do string
	for _, session := range all {
		if session.Verdict == Problem {
			down = append(down, session.Text)
			do = cmp.Or(do, session.Do)
		}
	}

	step := summary("sessions", lb.SessionDown, "%d of %d BGP sessions are up", len(all), down)
	step.Do = do
	return step
}

// poolsStep counts the addresses of the pools.
func (s Snapshot) poolsStep() Step {
	step := Step{
		Name:    "pools",
		Verdict: OK,
		Text:    fmt.Sprintf("%d of them", len(s.Objects.Pools)),
	}

	for _, p := range s.Objects.Pools {
		pool := poolStep(p)
		if pool.Verdict == Problem {
			step.Verdict = Note
			step.Reason = pool.Reason
			step.Do = pool.Do
		}

		step.Details = append(step.Details, p.Name+": "+pool.Text)
	}

	return s.unlessUnread(step.withFewDetails(), "they", Pools)
}

// servicesStep counts the Services that are served, and names the others.
func (s Snapshot) servicesStep() Step {
	all := 0
	var unserved []string
	var do string
	for _, o := range s.Objects.Services {
		if !s.Options.Serves(o) {
			continue
		}

		all++
		why := unservedReason(o.Status.Conditions)
		if why != "" {
			do = "kubectl holdfast why " + o.Namespace + "/" + o.Name
			unserved = append(unserved, fmt.Sprintf("%s/%s: %s", o.Namespace, o.Name, why))
		}
	}

	step := summary("Services", "", "%d of %d are served", all, unserved)
	step.Do = do
	return s.unlessUnread(step, "they", Services)
}

// unservedReason returns the reason why a Service is not served; "" if it is served.
func unservedReason(conditions []metav1.Condition) string {
	address := conditionStep("", conditions, v1beta1.ConditionAddressAssigned)
	if address.Verdict == Problem {
		return string(address.Reason)
	}

	isAnnounced := false
	for _, condition := range []string{v1beta1.ConditionAnnouncedL2, v1beta1.ConditionAnnouncedBGP} {
		step := conditionStep("", conditions, condition)
		switch step.Verdict {
		case Problem:
			return string(step.Reason)
		case OK:
			isAnnounced = true
		}
	}

	if !isAnnounced {
		return "no speaker announces it"
	}

	return ""
}

// invalidSteps makes steps about the objects that are not in force as they are written. Services have conditions.
func (s Snapshot) invalidSteps() (out []Step) {
	_, problems := s.compile()
	for _, p := range problems {
		if p.Object.Kind != "Service" {
			out = append(out, problemStep(p))
		}
	}

	// compile does not read the Secrets of passwords: only the peer's condition says what is wrong with one.
	for _, p := range s.Objects.Peers {
		step := conditionStep("BGPPeer "+p.Name, p.Status.Conditions, v1beta1.ConditionValid)
		if step.Verdict == Problem && p.Spec.PasswordSecret != nil {
			out = append(out, step)
		}
	}

	slices.SortStableFunc(out, func(a, b Step) int { return strings.Compare(a.Name, b.Name) })
	return out
}
