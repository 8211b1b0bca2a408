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

// speakerStates is the resource of the SpeakerStates.
const speakerStates = "speakerstates"

// SpeakerStates returns the states of all speakers, in no particular order.
func (k *Cluster) SpeakerStates() []*v1beta1.SpeakerState {
	return k.speakerStates.List()
}

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

// UpdateSpeakerState writes the differences of the conditions, which belong to the controller. A write that another one
// overtook is repeated on the new version of the object: loops of the controller write different conditions, and the
// speaker writes the rest of the status.
func (k *Cluster) UpdateSpeakerState(
	ctx context.Context,
	o *v1beta1.SpeakerState,
	conditions []metav1.Condition,
) (bool, error) {
	wrote, err := k.speakerStates.updateConditions(ctx, o, o.Status.Conditions, conditions)
	if !apierrors.IsConflict(err) {
		return wrote, err
	}

	o, err = k.SpeakerState(ctx, o.Name)
	if err != nil {
		return false, err
	}

	return k.speakerStates.updateConditions(ctx, o, o.Status.Conditions, conditions)
}

// SpeakerState reads the state of one speaker from the API server itself.
func (k *Cluster) SpeakerState(ctx context.Context, node string) (*v1beta1.SpeakerState, error) {
	state := &v1beta1.SpeakerState{}
	err := k.clients.holdfast.Get().
		Resource(speakerStates).
		Name(node).
		Do(ctx).
		Into(state)
	if err != nil {
		return nil, fmt.Errorf("read speakerstate %s: %w", node, err)
	}

	return state, nil
}

// WriteSpeakerState writes all of a speaker's state except the conditions, which belong to the controller. It creates
// the object if necessary.
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
		err = k.createSpeakerState(ctx, node)
		if err == nil {
			err = write()
		}
	}
	if err != nil {
		return fmt.Errorf("write speakerstate %s: %w", node, err)
	}

	return nil
}

// createSpeakerState creates a SpeakerState that its Node owns, so that both are deleted together.
func (k *Cluster) createSpeakerState(ctx context.Context, node string) error {
	metadata := metav1.ObjectMeta{Name: node}
	n := k.nodeOf(node)
	if n.UID != "" {
		metadata.OwnerReferences = []metav1.OwnerReference{
			{
				APIVersion: corev1.SchemeGroupVersion.String(),
				Kind:       "Node",
				Name:       node,
				UID:        n.UID,
			},
		}
	}
	// Without a status: its empty fields would be encoded as null, which only a patch accepts.
	body := asJSON(metav1.PartialObjectMetadata{
		TypeMeta:   typeMeta("SpeakerState"),
		ObjectMeta: metadata,
	})
	err := k.clients.holdfast.Post().Resource(speakerStates).Body(body).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		return nil
	}

	return err
}

// nodeOf returns the Node of a name; an empty Node if there is none.
func (k *Cluster) nodeOf(name string) *corev1.Node {
	node := k.nodes.Map().Of(lb.Key{Name: name})
	return cmp.Or(node, &corev1.Node{})
}

// PeersOf returns the names of the BGPPeers that select a node, including peers that cannot be used there.
func (k *Cluster) PeersOf(node string) map[string]bool {
	out := map[string]bool{}
	labels := k.nodeOf(node).Labels
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

// Kernels returns the ports of the speaker and the kubelet of each node. The node's kernel answers there even if these
// processes died.
func (k *Cluster) Kernels(membersPort uint16) map[string][]netip.AddrPort {
	return kernels(k.SpeakerAddresses(), k.nodes.List(), membersPort)
}

// maxKernelAddresses bounds the addresses at which a node's kernel is asked: every speaker asks all at once, whatever
// the Node lists.
const maxKernelAddresses = 4

// kernels returns the ports of Kernels, given the addresses of the speakers by node.
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
		for _, a := range kubeletAddresses(n, speakers[n.Name]) {
			out[n.Name] = append(out[n.Name], netip.AddrPortFrom(a, port))
		}
	}

	return out
}

// kubeletAddresses returns the addresses of a node, first the address of its speaker if that is valid.
func kubeletAddresses(n *corev1.Node, speaker netip.Addr) (out []netip.Addr) {
	if speaker.IsValid() {
		out = append(out, speaker)
	}

	for _, address := range n.Status.Addresses {
		if len(out) == maxKernelAddresses {
			break
		}

		a, err := netip.ParseAddr(address.Address)
		isUsable := err == nil && address.Type == corev1.NodeInternalIP
		if isUsable && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}

	return out
}
