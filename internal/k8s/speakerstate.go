package k8s

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const speakerStates = "speakerstates"

// SpeakerStates returns the states of all speakers, in no particular order.
func (k *Cluster) SpeakerStates() []*v1beta1.SpeakerState { return k.speakerStates.List() }

// FreshSpeakerStates lists the states of all speakers from the API server itself, past the cache.
func (k *Cluster) FreshSpeakerStates(ctx context.Context) ([]*v1beta1.SpeakerState, error) {
	if err := k.speakerStates.refresh(ctx); err != nil {
		return nil, err
	}
	return k.speakerStates.List(), nil
}

// NodesWithSpeaker lists the nodes that have a pod of a speaker, from the API server itself.
func (k *Cluster) NodesWithSpeaker(ctx context.Context) (map[string]bool, error) {
	var pods corev1.PodList
	err := k.clients.kube.core.Get().
		Namespace(k.config.Namespace).
		Resource("pods").
		VersionedParams(&metav1.ListOptions{LabelSelector: SpeakerLabels}, parameters).
		Do(ctx).
		Into(&pods)
	if err != nil {
		return nil, fmt.Errorf("list the speakers' pods: %w", err)
	}

	nodes := map[string]bool{}
	for _, p := range pods.Items {
		nodes[p.Spec.NodeName] = true
	}
	return nodes, nil
}

// ExpectedSpeakers returns how many nodes should have a speaker, including dead ones.
func (k *Cluster) ExpectedSpeakers() int {
	n := 0
	for _, d := range k.daemonSets.List() {
		n += int(d.Status.DesiredNumberScheduled)
	}
	return n
}

// UpdateSpeakerState writes the differences of the conditions, which belong to the controller. Its loops write
// different ones, and the speaker the rest, so that a write that another overtook is repeated on the object as it is.
func (k *Cluster) UpdateSpeakerState(
	ctx context.Context,
	o *v1beta1.SpeakerState,
	conditions []metav1.Condition,
) (bool, error) {
	wrote, err := k.speakerStates.updateConditions(ctx, o, o.Status.Conditions, conditions)
	if apierrors.IsConflict(err) {
		if o, err = k.SpeakerState(ctx, o.Name); err == nil {
			wrote, err = k.speakerStates.updateConditions(ctx, o, o.Status.Conditions, conditions)
		}
	}
	return wrote, err
}

// SpeakerState reads the state of one speaker from the API server itself.
func (k *Cluster) SpeakerState(ctx context.Context, node string) (*v1beta1.SpeakerState, error) {
	state := &v1beta1.SpeakerState{}
	if err := k.clients.holdfast.Get().Resource(speakerStates).Name(node).Do(ctx).Into(state); err != nil {
		return nil, fmt.Errorf("read speakerstate %s: %w", node, err)
	}
	return state, nil
}

// WriteSpeakerState writes all of a speaker's state except the conditions, which
// belong to the controller, and creates the object if necessary.
func (k *Cluster) WriteSpeakerState(ctx context.Context, node string, status v1beta1.SpeakerStateStatus) error {
	status.Conditions = nil // left out of the patch
	return k.patchSpeakerState(ctx, node, status)
}

// WriteKeysVersion writes only the keysVersion of a speaker's state, and creates the object if necessary.
func (k *Cluster) WriteKeysVersion(ctx context.Context, node, version string) error {
	return k.patchSpeakerState(ctx, node, map[string]string{"keysVersion": version})
}

// patchSpeakerState writes fields of a speaker's status, and creates the object if necessary.
func (k *Cluster) patchSpeakerState(ctx context.Context, node string, status any) error {
	body := asJSON(map[string]any{"status": status})
	write := func() error {
		return k.clients.holdfast.Patch(types.MergePatchType).
			Resource(speakerStates).
			Name(node).
			SubResource("status").
			Body(body).
			Do(ctx).
			Error()
	}
	err := write()
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

// createSpeakerState makes the Node own the object, so that both are deleted together.
func (k *Cluster) createSpeakerState(ctx context.Context, node string) error {
	metadata := metav1.ObjectMeta{Name: node}
	if n := k.nodeOf(node); n.UID != "" {
		metadata.OwnerReferences = []metav1.OwnerReference{
			{APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Node", Name: node, UID: n.UID},
		}
	}
	// Without a status: its empty fields would be encoded as null, which only a patch accepts.
	body := asJSON(metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: "SpeakerState"},
		ObjectMeta: metadata,
	})
	err := k.clients.holdfast.Post().Resource(speakerStates).Body(body).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// nodeOf returns a node; an empty one if it is not there.
func (k *Cluster) nodeOf(name string) *corev1.Node {
	return cmp.Or(k.nodes.Map().Of(lb.Key{Name: name}), &corev1.Node{})
}

// PeersOf returns the names of the BGPPeers that select a node, also of those that cannot be used there.
func (k *Cluster) PeersOf(node string) map[string]bool {
	out, labels := map[string]bool{}, k.nodeOf(node).Labels
	for _, p := range k.peers.List() {
		if config.Selects(p, labels) {
			out[p.Name] = true
		}
	}
	return out
}

// ReadyWithoutSessions reports whether a node has the annotation that makes its speaker ready.
func (k *Cluster) ReadyWithoutSessions(node string) bool {
	return k.nodeOf(node).Annotations[v1beta1.AnnotationReadyWithoutSessions] == "true"
}

// Kernels returns, by node, ports of its speaker and its kubelet: the node's kernel
// answers there even if these processes died.
func (k *Cluster) Kernels(membersPort uint16) map[string][]netip.AddrPort {
	return kernels(k.SpeakerAddresses(), k.nodes.List(), membersPort)
}

// maxKernelAddresses bounds the addresses at which a node's kernel is asked: every speaker asks all at once, whatever
// the Node lists.
const maxKernelAddresses = 4

func kernels(speakers map[string]netip.Addr, nodes []*corev1.Node, membersPort uint16) map[string][]netip.AddrPort {
	out := map[string][]netip.AddrPort{}
	for node, a := range speakers {
		out[node] = append(out[node], netip.AddrPortFrom(a, membersPort))
	}
	for _, n := range nodes {
		port := uint16(n.Status.DaemonEndpoints.KubeletEndpoint.Port)
		if port == 0 {
			continue
		}
		addresses := []netip.Addr{}
		if a, known := speakers[n.Name]; known {
			addresses = append(addresses, a)
		}
		for _, address := range n.Status.Addresses {
			a, err := netip.ParseAddr(address.Address)
			if err == nil &&
				address.Type == corev1.NodeInternalIP &&
				len(addresses) < maxKernelAddresses &&
				!slices.Contains(addresses, a) {
				addresses = append(addresses, a)
			}
		}
		for _, a := range addresses {
			out[n.Name] = append(out[n.Name], netip.AddrPortFrom(a, port))
		}
	}
	return out
}
