// Package explain says of a snapshot of the cluster why an address answers or does not, and what a change of objects would
// change. It is pure: it reads no clock and no API server. What would be it computes by the very functions that the daemons run;
// what is it takes from what the daemons wrote.
package explain

import (
	"encoding/json"
	"net/netip"
	"slices"
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
	// Options that the controller runs with.
	Options    config.Options
	States     []*v1beta1.SpeakerState
	Speakers   *appsv1.DaemonSet
	Controller *appsv1.Deployment
	// Pods of the speakers.
	Pods []*corev1.Pod
	// Leases has the one by which controllers elect their leader.
	Leases []*coordinationv1.Lease
	// Daemons are the pages /debug/state that were read, by pod, and Silent why others were not; both nil if none was asked for.
	Daemons map[string]json.RawMessage
	Silent  map[string]string `json:"-"`
	// Probed is what speakers found when they were asked to probe.
	Probed []Step `json:"-"`
	// Unread maps what could not be read to the reason, for example "nodes" to "forbidden".
	Unread map[string]string
}

// The names of what may be unread: resources, as kubectl has them.
const (
	Pools      = "ipaddresspools"
	Nodes      = "nodes"
	Services   = "services"
	Slices     = "endpointslices"
	L2Ads      = "l2advertisements"
	BGPAds     = "bgpadvertisements"
	Peers      = "bgppeers"
	States     = "speakerstates"
	Speakers   = "daemonsets"
	Controller = "deployments"
	Pods       = "pods"
	Leases     = "leases"
)

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
		if ref := p.Spec.PasswordSecret; ref != nil && ref.Name != "" {
			o.Secrets = append(o.Secrets, stand(s.Namespace, ref.Name))
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

// stand returns what stands for a Secret with a password: passwords are not read, and the condition Valid of a peer says if it lacks one.
func stand(namespace, name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: corev1.SecretTypeBasicAuth,
		Data: map[string][]byte{corev1.BasicAuthPasswordKey: []byte("unread")}}
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// addresses returns those in the status of a Service.
func addresses(o *corev1.Service) (out []netip.Addr) {
	if o == nil {
		return nil
	}
	for _, in := range o.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil {
			out = append(out, a)
		}
	}
	return out
}

// waiting maps nodes with a speaker's pod, but none that is ready, to what it waits for.
func (s Snapshot) waiting() map[string]string {
	out := map[string]string{}
	for _, p := range s.Pods {
		out[p.Spec.NodeName] = "pod " + p.Name + " is not ready"
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Waiting != nil {
				out[p.Spec.NodeName] = "pod " + p.Name + ": " + c.State.Waiting.Reason
			}
			if c.State.Terminated != nil {
				out[p.Spec.NodeName] = "pod " + p.Name + ": " + c.State.Terminated.Reason
			}
		}
	}
	for _, p := range s.Pods {
		if ready(p) {
			delete(out, p.Spec.NodeName)
		}
	}
	return out
}
