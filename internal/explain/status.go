package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Status is one screen about the whole cluster: problems first.
func (s Snapshot) Status() Report {
	r := Report{Subject: "Holdfast in namespace " + s.Namespace}
	w := why{Snapshot: s, object: &corev1.Service{}}
	w.controller()
	w.speakers()
	steps := append(w.report.Steps, s.versions(), s.sessions(), s.pools(), s.services())
	for _, state := range s.States {
		for _, p := range state.Status.Problems {
			steps = append(steps, Step{Name: "node " + state.Name, Verdict: Problem, Reason: lb.Reason(p.Reason), Text: p.Message})
		}
	}
	steps = append(steps, s.claims()...)
	steps = append(steps, s.invalid()...)
	for _, v := range []Verdict{Problem, Note, OK, Unseen} {
		for _, step := range steps {
			if step.Verdict == v {
				r.add(step)
			}
		}
	}
	return r.conclude()
}

// versions are the images that run.
func (s Snapshot) versions() Step {
	step := Step{Name: "versions", Verdict: OK}
	var images []string
	if s.Controller != nil {
		images = append(images, "controller "+s.Controller.Spec.Template.Spec.Containers[0].Image)
	}
	if s.Speakers != nil {
		images = append(images, "speaker "+s.Speakers.Spec.Template.Spec.Containers[0].Image)
	}
	if step.Text = strings.Join(images, ", "); step.Text == "" {
		step.Verdict, step.Text = Unseen, "they could not be read"
	}
	return step
}

// sessions counts the sessions of BGP.
func (s Snapshot) sessions() Step {
	step, up, all := Step{Name: "sessions", Verdict: OK}, 0, 0
	for _, state := range s.States {
		for _, one := range state.Status.Sessions {
			if all++; one.State == v1beta1.SessionStateEstablished {
				up++
				continue
			}
			step.Verdict, step.Reason = Problem, lb.NoSession
			step.Details = append(step.Details, fmt.Sprintf("node %s with %s: %s", state.Name, one.Peer, one.LastError))
		}
	}
	if step.Text = fmt.Sprintf("%d of %d BGP sessions are up", up, all); all == 0 {
		return Step{}
	}
	step.bound()
	return step
}

// bound keeps the first details.
func (s *Step) bound() {
	if more := len(s.Details) - lb.Few; more > 0 {
		s.Details = append(s.Details[:lb.Few], fmt.Sprintf("and %d more", more))
	}
}

// pools counts their addresses.
func (s Snapshot) pools() Step {
	step := Step{Name: "pools", Verdict: OK, Text: "no IPAddressPool exists"}
	if len(s.Objects.Pools) > 0 {
		step.Text = fmt.Sprintf("%d", len(s.Objects.Pools))
	}
	for _, p := range s.Objects.Pools {
		st := p.Status
		if st.AvailableIPv4+st.AvailableIPv6 == 0 {
			step.Verdict, step.Reason, step.Do = Note, lb.PoolExhausted, "add addresses to IPAddressPool "+p.Name
		}
		step.Details = append(step.Details, fmt.Sprintf("%s: IPv4 %d assigned, %d available; IPv6 %d, %d", p.Name, st.AssignedIPv4, st.AvailableIPv4,
			st.AssignedIPv6, st.AvailableIPv6))
	}
	step.bound()
	return s.seen(step, "they", Pools)
}

// services counts those that are served, and names those that are not.
func (s Snapshot) services() Step {
	step, all := Step{Name: "Services", Verdict: OK}, 0
	for _, o := range s.Objects.Services {
		if !s.Options.Serves(o) {
			continue
		}
		all++
		if why := unserved(o.Status.Conditions); why != "" {
			step.Verdict, step.Do = Problem, "kubectl holdfast why "+o.Namespace+"/"+o.Name
			step.Details = append(step.Details, fmt.Sprintf("%s/%s: %s", o.Namespace, o.Name, why))
		}
	}
	step.Text = fmt.Sprintf("%d of %d are served", all-len(step.Details), all)
	step.bound()
	return s.seen(step, "they", Services)
}

// unserved returns the reason why a Service is not served; "" if it is.
func unserved(conditions []metav1.Condition) string {
	announced := false
	for _, condition := range []string{v1beta1.ConditionAddressAssigned, v1beta1.ConditionAnnouncedL2, v1beta1.ConditionAnnouncedBGP} {
		switch c := meta.FindStatusCondition(conditions, condition); {
		case c != nil && c.Status != metav1.ConditionTrue:
			return c.Reason
		case c != nil:
			announced = condition != v1beta1.ConditionAddressAssigned
		case condition == v1beta1.ConditionAddressAssigned:
			return "the controller has not decided about it"
		}
	}
	if !announced {
		return "no speaker announces it"
	}
	return ""
}

// invalid are the objects that are not in force as they are written.
func (s Snapshot) invalid() (out []Step) {
	_, problems := s.compile()
	for _, p := range problems {
		verdict := Problem
		if p.Note {
			verdict = Note
		}
		if p.Object.Kind != "Service" {
			out = append(out, Step{Name: p.Object.String(), Verdict: verdict, Reason: p.Reason, Text: p.Message})
		}
	}
	for _, p := range s.Objects.Peers {
		if step := conditionStep("BGPPeer "+p.Name, p.Status.Conditions, v1beta1.ConditionValid); step.Verdict == Problem && p.Spec.PasswordSecret != nil {
			out = append(out, step)
		}
	}
	slices.SortStableFunc(out, func(a, b Step) int { return strings.Compare(a.Name, b.Name) })
	return out
}
