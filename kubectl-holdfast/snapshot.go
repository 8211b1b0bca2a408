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

// Snapshot holds the objects of a cluster that were read at one moment.
type Snapshot struct {
	Now time.Time
	// Namespace is the namespace of Holdfast itself.
	Namespace string
	Objects   config.Objects
	// Options are the settings of the controller: see ReadOptions.
	Options    config.Options `json:"-"`
	States     []*v1beta1.SpeakerState
	Speakers   *appsv1.DaemonSet
	Controller *appsv1.Deployment
	// Pods are the pods of the speakers, and Controllers the pods of the controller.
	Pods, Controllers []*corev1.Pod
	// Leases has the Lease by which controllers elect their leader.
	Leases []*coordinationv1.Lease
	// Daemons are the pages /debug/state, by pod, and Silent the reasons why pages could not be read. Both are nil if
	// no daemon was asked.
	Daemons map[string]json.RawMessage
	Silent  map[string]string `json:"-"`
	// MetalLBParts are the objects by which MetalLB runs; nil unless they were read.
	MetalLBParts *MetalLBParts `json:"-"`
	// Probed are the results of the speakers that were asked to probe.
	Probed []Step `json:"-"`
	// Unread maps resources that could not be read to the reason, for example "nodes" to "forbidden".
	Unread map[string]string
	// LeftOut lists in sentences what a bundle lacks.
	LeftOut []string `json:",omitempty"`
}

// Names of resources in Snapshot.Unread, as kubectl has them.
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

// EgressPods names the pods of Services with egress in Snapshot.Unread. No other pods than these and Holdfast's own are
// read.
const EgressPods = "pods with outgoing connections"

// unlessUnread returns a step, or a step about the resources that it needs and that could not be read.
func (s Snapshot) unlessUnread(step Step, what string, resources ...string) Step {
	for _, resource := range resources {
		why, isUnread := s.Unread[resource]
		if isUnread {
			return Step{
				Name:    step.Name,
				Verdict: Unseen,
				Text:    what + " could not be read: " + why,
			}
		}
	}

	return step
}

// compile returns the objects as the daemons read them. Nodes whose speaker's pod is ready are members.
func (s Snapshot) compile() (lb.State, []lb.Problem) {
	objects := s.Objects
	objects.SecretNamespace = s.Namespace
	objects.Secrets = s.assumedSecrets()
	state, problems := config.Compile(objects, s.Options)

	state.Now = s.Now
	state.Members = map[string]bool{}
	state.Unfit = map[string]lb.Unfit{}
	for _, p := range s.Pods {
		node := p.Spec.NodeName
		if node != "" && isPodReady(p) && p.DeletionTimestamp == nil {
			state.Members[node] = true
		}

		if s.Options.OtherDataPath {
			state.Unfit[node] = lb.Unfiltered
		}
	}

	return state, problems
}

// assumedSecrets returns a Secret for each peer with a password. Secrets are not read: the condition Valid of the peer
// reports a missing Secret.
func (s Snapshot) assumedSecrets() (secrets []*corev1.Secret) {
	for _, p := range s.Objects.Peers {
		ref := p.Spec.PasswordSecret
		if ref == nil || ref.Name == "" {
			continue
		}

		secrets = append(secrets, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: ref.Name},
			Type:       corev1.SecretTypeBasicAuth,
			Data:       map[string][]byte{corev1.BasicAuthPasswordKey: []byte("unread")},
		})
	}

	return secrets
}

// ReadOptions takes the settings of the controller that runs, from its arguments; without it, the chart's.
func (s *Snapshot) ReadOptions() {
	f := flag.NewFlagSet("controller", flag.ContinueOnError)
	s.Options.Define(f)
	if s.Controller == nil {
		return
	}

	for name, value := range arguments(s.Controller.Spec.Template.Spec) {
		_ = f.Set(name, value) // the controller has other flags too, and does not start with an invalid value
	}
}

// arguments returns the flags that a daemon runs with.
func arguments(pod corev1.PodSpec) map[string]string {
	out := map[string]string{}
	if len(pod.Containers) == 0 {
		return out
	}

	for _, arg := range pod.Containers[0].Args {
		name, value, ok := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if ok {
			out[name] = value
		}
	}

	return out
}

// isPodReady reports whether a pod has the condition Ready.
func isPodReady(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// unreadySpeakers returns why no speaker is ready on a node, by the nodes that have only unready pods of speakers.
func (s Snapshot) unreadySpeakers() map[string]string {
	out := map[string]string{}
	hasReady := map[string]bool{}
	for _, p := range s.Pods {
		node := p.Spec.NodeName
		out[node] = "pod " + p.Name + unreadyReason(p)
		if isPodReady(p) {
			hasReady[node] = true
		}
	}

	maps.DeleteFunc(out, func(node, _ string) bool { return hasReady[node] })
	return out
}

// unreadyReason returns the reason of the last container that waits or has ended.
func unreadyReason(p *corev1.Pod) string {
	why := " is not ready"
	for _, c := range p.Status.ContainerStatuses {
		switch {
		case c.State.Waiting != nil:
			why = ": " + c.State.Waiting.Reason
		case c.State.Terminated != nil:
			why = ": " + c.State.Terminated.Reason
		}
	}

	return why
}

// Verdict is the result of a step.
type Verdict string

const (
	// OK means that the step is as it should be.
	OK Verdict = "ok"
	// Note means that the step works, but the user should know something about it.
	Note Verdict = "note"
	// Problem means that the step keeps packets from the Service.
	Problem Verdict = "problem"
	// Unseen means that an object which the step needs could not be read.
	Unseen Verdict = "unseen"
)

// Step is one decision about a packet.
type Step struct {
	Name    string    `json:"step"`
	Verdict Verdict   `json:"verdict"`
	Reason  lb.Reason `json:"reason,omitempty"`
	// Text is one sentence. Details are further sentences, one for each line.
	Text    string   `json:"text"`
	Details []string `json:"details,omitempty"`
	// Do is what the user should do about it. In a report every step has it unless it is OK.
	Do string `json:"do,omitempty"`
	// isSymptom reports whether any other problem is closer to the cause.
	isSymptom bool
}

// Report is the answer to one question.
type Report struct {
	Subject string `json:"subject"`
	Steps   []Step `json:"steps"`
	// First is the first thing to do.
	First string `json:"first"`
}

// add adds steps. It omits steps without a verdict.
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

// problemStep makes the step about a problem of an object.
func problemStep(p lb.Problem) Step {
	verdict := Problem
	if p.Note {
		verdict = Note
	}
	return Step{
		Name:    p.Object.String(),
		Verdict: verdict,
		Reason:  p.Reason,
		Text:    p.Message,
	}
}

// summary makes one step about many items. The format gets the number of good items, and of all. Each bad item is a
// detail.
func summary(name string, reason lb.Reason, format string, all int, bad []string) Step {
	step := Step{
		Name:    name,
		Verdict: OK,
		Text:    fmt.Sprintf(format, all-len(bad), all),
		Details: bad,
	}

	if len(bad) > 0 {
		step.Verdict = Problem
		step.Reason = reason
	}
	return step.withFewDetails()
}

// withFewDetails returns the step with its first details, and the number of the others.
func (s Step) withFewDetails() Step {
	more := len(s.Details) - lb.Few
	if more > 0 {
		s.Details = append(s.Details[:lb.Few:lb.Few], fmt.Sprintf("and %d more", more))
	}
	return s
}

// conclude sets what to do about each step, and chooses the first thing to do: about the first problem that is no
// symptom of another, else about the first symptom, note, or unseen step.
func (r Report) conclude() Report {
	r.First = "nothing: no problem was found"
	urgency := []Verdict{Problem, Note, Unseen}
	minRank := 2 * len(urgency)
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

		if rank < minRank {
			minRank = rank
			r.First = step.Do
		}
	}

	return r
}

// action returns what to do about a step that is not OK. It uses no sentence of the cluster: a tenant may have written
// it.
func (s Step) action() string {
	remedy := s.Reason.Remedy()
	switch {
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
