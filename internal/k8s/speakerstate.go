package k8s

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const speakerStates = "speakerstates"

// SpeakerStates returns what all speakers have written, in no particular order.
func (k *Cluster) SpeakerStates() []*v1beta1.SpeakerState { return k.speakerStates.List() }

// ExpectedSpeakers returns how many nodes there are that should have a speaker, dead ones included.
func (k *Cluster) ExpectedSpeakers() int {
	n := 0
	for _, d := range k.daemonSets.List() {
		n += int(d.Status.DesiredNumberScheduled)
	}
	return n
}

// UpdateSpeakerState writes what differs of the conditions, which are the controller's.
func (k *Cluster) UpdateSpeakerState(ctx context.Context, o *v1beta1.SpeakerState, conditions []metav1.Condition) (bool, error) {
	return updateConditions(ctx, k, k.speakerStates, speakerStates, o, o.Status.Conditions, conditions)
}

// SpeakerState reads what one speaker has written, from the API server itself.
func (k *Cluster) SpeakerState(ctx context.Context, node string) (*v1beta1.SpeakerState, error) {
	state := &v1beta1.SpeakerState{}
	if err := k.clients.holdfast.Get().Resource(speakerStates).Name(node).Do(ctx).Into(state); err != nil {
		return nil, fmt.Errorf("read speakerstate %s: %w", node, err)
	}
	return state, nil
}

// WriteSpeakerState writes all of a speaker's own state but the conditions, which
// are not its own, and creates the object if need be.
func (k *Cluster) WriteSpeakerState(ctx context.Context, node string, status v1beta1.SpeakerStateStatus) error {
	status.Conditions = nil // left out of the patch
	body, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return fmt.Errorf("encode speakerstate: %w", err)
	}
	write := func() error {
		return k.clients.holdfast.Patch(types.MergePatchType).Resource(speakerStates).Name(node).SubResource("status").Body(body).Do(ctx).Error()
	}
	err = write()
	if apierrors.IsNotFound(err) {
		if err = k.createSpeakerState(ctx, node); err == nil {
			err = write()
		}
	}
	if err != nil {
		return fmt.Errorf("write speakerstate %s: %w", node, err)
	}
	return nil
}

// createSpeakerState makes the object a dependent of the Node, so that it goes with it.
func (k *Cluster) createSpeakerState(ctx context.Context, node string) error {
	metadata := metav1.ObjectMeta{Name: node}
	for _, n := range k.nodes.List() {
		if n.Name == node {
			metadata.OwnerReferences = []metav1.OwnerReference{{APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Node", Name: node, UID: n.UID}}
		}
	}
	// Without a status: what is empty in it would be written as null, which only a patch understands.
	body, err := json.Marshal(metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "SpeakerState"},
		ObjectMeta: metadata,
	})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	err = k.clients.holdfast.Post().Resource(speakerStates).Body(body).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// Speaker is where a speaker's pod is.
type Speaker struct {
	Node string
	// Kernel are ports of the node that are in use by the speaker or the kubelet: its
	// kernel answers there, whatever became of these.
	Kernel []netip.AddrPort
}

// Speakers returns the nodes that have a speaker's pod, ordered by name, each once.
func (k *Cluster) Speakers(membersPort uint16) []Speaker {
	kubelets := map[string]uint16{}
	for _, n := range k.nodes.List() {
		kubelets[n.Name] = uint16(n.Status.DaemonEndpoints.KubeletEndpoint.Port)
	}
	var out []Speaker
	for _, p := range k.pods.List() {
		a, err := netip.ParseAddr(p.Status.HostIP)
		if err != nil || p.Spec.NodeName == "" {
			continue // not running yet
		}
		s := Speaker{Node: p.Spec.NodeName, Kernel: []netip.AddrPort{netip.AddrPortFrom(a, membersPort)}}
		if port := kubelets[s.Node]; port != 0 {
			s.Kernel = append(s.Kernel, netip.AddrPortFrom(a, port))
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b Speaker) int { return cmp.Compare(a.Node, b.Node) })
	return slices.CompactFunc(out, func(a, b Speaker) bool { return a.Node == b.Node })
}
