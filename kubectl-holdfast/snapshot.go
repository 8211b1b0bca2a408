package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Snapshot is what was read of a cluster at one moment.
type Snapshot struct {
	Now time.Time
	// Namespace that Holdfast runs in.
	Namespace string
	Objects   config.Objects
	// Options that the controller runs with: see ReadOptions.
	Options    config.Options `json:"-"`
	States     []*v1beta1.SpeakerState
	Speakers   *appsv1.DaemonSet
	Controller *appsv1.Deployment
	// Pods of the speakers, and of the controller.
	Pods, Controllers []*corev1.Pod
	// Leases has the one by which controllers elect their leader.
	Leases []*coordinationv1.Lease
	// Daemons are the pages /debug/state that were read, by pod, and Silent why others were not; both nil if none was
	// asked for.
	Daemons map[string]json.RawMessage
	Silent  map[string]string `json:"-"`
	// MetalLBParts is how MetalLB runs; nil unless it was asked for.
	MetalLBParts *MetalLBParts `json:"-"`
	// Probed is what speakers found when they were asked to probe.
	Probed []Step `json:"-"`
	// Unread maps what could not be read to the reason, for example "nodes" to "forbidden".
	Unread map[string]string
	// LeftOut says what a bundle has not, in sentences.
	LeftOut []string `json:",omitempty"`
}

// The names of what may be unread: resources, as kubectl has them.
const (
	Pools       = "ipaddresspools"
	Nodes       = "nodes"
	Services    = "services"
	Slices      = "endpointslices"
	L2Ads       = "l2advertisements"
	BGPAds      = "bgpadvertisements"
	Peers       = "bgppeers"
	States      = "speakerstates"
	Allocations = "egressallocations"
	Speakers    = "daemonsets"
	Controller  = "deployments"
	Pods        = "pods"
	Leases      = "leases"
)

// EgressPods names the pods of Services with egress, of which other pods than Holdfast's are read.
const EgressPods = "pods with outgoing connections"

// seen returns a step, or that what it needs could not be read.
func (s Snapshot) seen(step Step, what string, of ...string) Step {
	for _, resource := range of {
		if text, failed := s.Unread[resource]; failed {
			return Step{Name: step.Name, Verdict: Unseen, Text: what + " could not be read: " + text}
		}
	}
	return step
}

// compile returns the objects as the daemons read them. Nodes whose speaker's pod is ready are members.
func (s Snapshot) compile() (lb.State, []lb.Problem) {
	o := s.Objects
	o.SecretNamespace, o.Secrets = s.Namespace, nil
	for _, p := range o.Peers {
		if ref := p.Spec.PasswordSecret; ref != nil &&
			ref.Name != "" { // which is not read: the condition Valid of the peer says if it lacks one
			o.Secrets = append(
				o.Secrets,
				&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: ref.Name},
					Type: corev1.SecretTypeBasicAuth, Data: map[string][]byte{corev1.BasicAuthPasswordKey: []byte("unread")}},
			)
		}
	}
	state, problems := config.Compile(o, s.Options)
	state.Now, state.Members, state.Unfit = s.Now, map[string]bool{}, map[string]lb.Unfit{}
	for _, p := range s.Pods {
		if p.Spec.NodeName != "" && ready(p) && p.DeletionTimestamp == nil {
			state.Members[p.Spec.NodeName] = true
		}
		if s.Options.OtherDataPath {
			state.Unfit[p.Spec.NodeName] = lb.Unfiltered
		}
	}
	return state, problems
}

// ReadOptions takes the settings of the controller that runs, from its arguments; without it, the chart's.
func (s *Snapshot) ReadOptions() {
	f := flag.NewFlagSet("controller", flag.ContinueOnError)
	s.Options.Define(f)
	if s.Controller == nil {
		return
	}
	for name, value := range arguments(s.Controller.Spec.Template.Spec) {
		_ = f.Set(name, value) // it has other flags, too, and would not start with a value that cannot be read
	}
}

// arguments are the flags that a daemon runs with.
func arguments(pod corev1.PodSpec) map[string]string {
	out := map[string]string{}
	if len(pod.Containers) == 0 {
		return out
	}
	for _, arg := range pod.Containers[0].Args {
		if name, value, given := strings.Cut(strings.TrimLeft(arg, "-"), "="); given {
			out[name] = value
		}
	}
	return out
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// waiting maps nodes with a speaker's pod, but none that is ready, to what it waits for.
func (s Snapshot) waiting() map[string]string {
	out, well := map[string]string{}, map[string]bool{}
	for _, p := range s.Pods {
		node, why := p.Spec.NodeName, " is not ready"
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Waiting != nil {
				why = ": " + c.State.Waiting.Reason
			} else if c.State.Terminated != nil {
				why = ": " + c.State.Terminated.Reason
			}
		}
		out[node], well[node] = "pod "+p.Name+why, well[node] || ready(p)
	}
	maps.DeleteFunc(out, func(node, _ string) bool { return well[node] })
	return out
}

// Verdict is how a step went.
type Verdict string

const (
	OK Verdict = "ok"
	// Note: it works, but the user should know.
	Note    Verdict = "note"
	Problem Verdict = "problem"
	// Unseen: what the step needs could not be read.
	Unseen Verdict = "unseen"
)

// Step is one decision about a packet.
type Step struct {
	Name    string    `json:"step"`
	Verdict Verdict   `json:"verdict"`
	Reason  lb.Reason `json:"reason,omitempty"`
	// Text is one sentence. Details are more of them, in a line each.
	Text    string   `json:"text"`
	Details []string `json:"details,omitempty"`
	// Do is what to do about it: of each step that is not OK in a report.
	Do string `json:"do,omitempty"`
	// isSymptom: if there is another problem, that is closer to the cause.
	isSymptom bool
}

// Report is the answer to one question.
type Report struct {
	Subject string `json:"subject"`
	Steps   []Step `json:"steps"`
	// First is the first thing to do.
	First string `json:"first"`
}

// add adds steps; one without a verdict has nothing to say.
func (r *Report) add(steps ...Step) {
	for _, s := range steps {
		if s.Verdict != "" {
			r.Steps = append(r.Steps, s)
		}
	}
}

// Healthy reports whether no step found a problem.
func (r Report) Healthy() bool {
	return !slices.ContainsFunc(r.Steps, func(s Step) bool { return s.Verdict == Problem })
}

func fault(p lb.Problem) Step {
	return Step{
		Name:    p.Object.String(),
		Verdict: map[bool]Verdict{false: Problem, true: Note}[p.Note],
		Reason:  p.Reason,
		Text:    p.Message,
	}
}

// summary makes one step of many things: how many are well, and a line for each other one, but not for too many.
func summary(name string, reason lb.Reason, format string, all int, bad []string) Step {
	step := Step{Name: name, Verdict: OK, Text: fmt.Sprintf(format, all-len(bad), all), Details: bad}
	if len(bad) > 0 {
		step.Verdict, step.Reason = Problem, reason
	}
	return step.bound()
}

// bound keeps the first details.
func (s Step) bound() Step {
	if more := len(s.Details) - lb.Few; more > 0 {
		s.Details = append(s.Details[:lb.Few:lb.Few], fmt.Sprintf("and %d more", more))
	}
	return s
}

// conclude says of each step what to do about it, and chooses the first thing to do: of the first problem that is no
// symptom of another, else of the first symptom, note, or step that could not be seen.
func (r Report) conclude() Report {
	r.First = "nothing: no problem was found"
	urgency := []Verdict{Problem, Note, Unseen}
	best := 2 * len(urgency)
	for i := range r.Steps {
		step := &r.Steps[i]
		rank := 2 * slices.Index(urgency, step.Verdict)
		if rank < 0 {
			continue
		}
		step.Do = step.action()
		if step.isSymptom {
			rank++
		}
		if rank < best {
			best, r.First = rank, step.Do
		}
	}
	return r
}

// action returns what to do about a step that is not OK. No sentence of the cluster is taken for an action.
func (s Step) action() string {
	switch remedy := s.Reason.Remedy(); {
	case s.Do != "":
		return s.Do
	case s.Verdict == Unseen:
		return "ask an operator about the rest: no problem was found in what could be read"
	case remedy != "":
		return remedy
	case s.Verdict == Note:
		return "nothing, if you agree with the step " + s.Name
	}
	return "look for the cause in the text of the step " + s.Name + ": this version of the plugin knows no remedy"
}
