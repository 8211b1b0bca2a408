package k8s

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// UninstallMark is the annotation on the speakers' DaemonSet by which an
// uninstall tells every daemon to clean up and go. It vanishes with the DaemonSet.
const UninstallMark = "holdfast.dev/uninstall"

// Config of a Cluster.
type Config struct {
	Log *slog.Logger
	// Component is the source of the Events, for example holdfast-controller.
	Component string
	// Namespace Holdfast runs in.
	Namespace string
	// DaemonSet of the speakers, in Namespace.
	DaemonSet string
	// Speaker adds what only a speaker needs: endpoints and the pods of the other speakers.
	Speaker bool
	// Kick is called after every change.
	Kick func()
	// KickStates is called after every change of a SpeakerState. A controller that has it
	// watches these, and the endpoints; nil watches neither.
	KickStates func()
}

// SpeakerLabels select the pods of the speakers in Holdfast's namespace.
const SpeakerLabels = "app.kubernetes.io/name=holdfast,app.kubernetes.io/component=speaker"

// Cluster is the API server's objects and the way to write to them.
type Cluster struct {
	clients Clients
	config  Config
	synced  atomic.Bool
	// uninstalling is what the DaemonSet said last.
	uninstalling atomic.Bool
	views        []interface {
		run(ctx context.Context)
		waitForSync(ctx context.Context) bool
	}
	events recorder

	services          *View[*corev1.Service]
	namespaces        *View[*corev1.Namespace]
	nodes             *View[*corev1.Node]
	pools             *View[*v1beta1.IPAddressPool]
	floatingIPs       *View[*v1beta1.FloatingIP]
	l2Advertisements  *View[*v1beta1.L2Advertisement]
	bgpAdvertisements *View[*v1beta1.BGPAdvertisement]
	peers             *View[*v1beta1.BGPPeer]
	daemonSets        *View[*appsv1.DaemonSet]
	endpointSlices    *View[*discoveryv1.EndpointSlice]
	pods              *View[*corev1.Pod]
	speakerStates     *View[*v1beta1.SpeakerState]
}

// New returns a Cluster that Run starts.
func New(clients Clients, c Config) (*Cluster, error) {
	k := &Cluster{clients: clients, config: c, events: newRecorder(c.Component)}
	core := clients.kube.CoreV1().RESTClient()
	apps := clients.kube.AppsV1().RESTClient()
	own := fields.OneTermEqualSelector("metadata.name", c.DaemonSet)
	errs := []error{
		watch(k, &k.services, core, "services", "", nil, nil),
		watch(k, &k.namespaces, core, "namespaces", "", nil, sameNamespace),
		watch(k, &k.nodes, core, "nodes", "", nil, sameNode),
		watch(k, &k.pools, clients.holdfast, "ipaddresspools", "", nil, nil),
		watch(k, &k.l2Advertisements, clients.holdfast, "l2advertisements", "", nil, nil),
		watch(k, &k.bgpAdvertisements, clients.holdfast, "bgpadvertisements", "", nil, nil),
		watch(k, &k.peers, clients.holdfast, "bgppeers", "", nil, nil),
		watch(k, &k.daemonSets, apps, "daemonsets", c.Namespace, func(o *metav1.ListOptions) { o.FieldSelector = own.String() }, nil),
	}
	discovery := clients.kube.DiscoveryV1().RESTClient()
	if !c.Speaker {
		errs = append(errs, watch(k, &k.floatingIPs, clients.holdfast, "floatingips", "", nil, nil))
		if c.KickStates != nil {
			errs = append(errs,
				watchFor(k, c.KickStates, &k.speakerStates, clients.holdfast, "speakerstates", "", nil, nil),
				// Nothing is decided when an endpoint changes: they are looked at when a node is dead.
				watchFor(k, func() {}, &k.endpointSlices, discovery, "endpointslices", "", nil, nil),
			)
		}
	} else {
		errs = append(errs,
			watch(k, &k.endpointSlices, discovery, "endpointslices", "", nil, nil),
			watch(k, &k.pods, core, "pods", c.Namespace, func(o *metav1.ListOptions) { o.LabelSelector = SpeakerLabels }, samePod),
		)
	}
	return k, errors.Join(errs...)
}

// watch makes the view of one kind, whose changes kick.
func watch[T object](k *Cluster, view **View[T], client rest.Interface, resource, namespace string, options func(*metav1.ListOptions), same func(old, new T) bool) error {
	return watchFor(k, k.config.Kick, view, client, resource, namespace, options, same)
}

func watchFor[T object](k *Cluster, kick func(), view **View[T], client rest.Interface, resource, namespace string, options func(*metav1.ListOptions), same func(old, new T) bool) error {
	if options == nil {
		options = func(*metav1.ListOptions) {}
	}
	source := cache.NewFilteredListWatchFromClient(client, resource, namespace, options)
	example := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(runtime.Object)
	informer := cache.NewSharedIndexInformer(source, example, 0, cache.Indexers{})
	if err := informer.SetTransform(slim); err != nil {
		return fmt.Errorf("watch %s: %w", resource, err)
	}
	v, err := newView(informer, kick, same)
	if err != nil {
		return fmt.Errorf("watch %s: %w", resource, err)
	}
	*view = v
	k.views = append(k.views, v)
	return nil
}

// slim drops what nobody here reads: a third of an average object, and most of a Node.
func slim(o any) (any, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return o, nil // a tombstone
	}
	m.SetManagedFields(nil)
	switch o := o.(type) {
	case *corev1.Node:
		o.Status.Images = nil
		o.Annotations = nil
		o.Status.Conditions = slices.DeleteFunc(o.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type != corev1.NodeNetworkUnavailable && c.Type != corev1.NodeReady
		})
		for i := range o.Status.Conditions {
			o.Status.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
	case *corev1.Pod:
		o.Spec = corev1.PodSpec{NodeName: o.Spec.NodeName}
	case *discoveryv1.EndpointSlice:
		o.Ports = nil
		for i, e := range o.Endpoints {
			o.Endpoints[i] = discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions, NodeName: e.NodeName, TargetRef: e.TargetRef}
		}
	}
	return o, nil
}

// sameNode ignores heartbeats: a thousand kubelets must not keep every loop busy.
func sameNode(a, b *corev1.Node) bool {
	return reflect.DeepEqual(a.Labels, b.Labels) && reflect.DeepEqual(a.Status.Addresses, b.Status.Addresses) &&
		reflect.DeepEqual(a.Status.Conditions, b.Status.Conditions) && a.DeletionTimestamp.Equal(b.DeletionTimestamp) &&
		a.Spec.Unschedulable == b.Spec.Unschedulable && reflect.DeepEqual(a.Spec.Taints, b.Spec.Taints)
}

func sameNamespace(a, b *corev1.Namespace) bool { return reflect.DeepEqual(a.Labels, b.Labels) }

func samePod(a, b *corev1.Pod) bool {
	return a.Status.HostIP == b.Status.HostIP && a.DeletionTimestamp.Equal(b.DeletionTimestamp)
}

func (v *View[T]) run(ctx context.Context) { v.informer.Run(ctx.Done()) }

// Run watches until ctx is cancelled and returns nil. Watches that break are taken up again by themselves.
func (k *Cluster) Run(ctx context.Context) error {
	defer k.startEvents()()
	var group errgroup.Group
	for _, v := range k.views {
		group.Go(func() error { v.run(ctx); return nil })
	}
	if k.WaitForSync(ctx) == nil {
		k.synced.Store(true)
		k.config.Kick()
	}
	return group.Wait()
}

// Synced reports whether every view shows all that was there at the start.
func (k *Cluster) Synced() bool { return k.synced.Load() }

// WaitForSync blocks until Synced, or returns the error of ctx.
func (k *Cluster) WaitForSync(ctx context.Context) error {
	for _, v := range k.views {
		if !v.waitForSync(ctx) {
			return ctx.Err()
		}
	}
	return nil
}

// Objects returns everything a decision depends on.
func (k *Cluster) Objects() config.Objects {
	o := config.Objects{
		Pools:             k.pools.List(),
		L2Advertisements:  k.l2Advertisements.List(),
		BGPAdvertisements: k.bgpAdvertisements.List(),
		Peers:             k.peers.List(),
		Services:          k.services.List(),
		Nodes:             k.nodes.List(),
		Namespaces:        k.namespaces.List(),
	}
	if k.floatingIPs != nil {
		o.FloatingIPs = k.floatingIPs.List()
	}
	if k.config.Speaker {
		o.EndpointSlices = k.endpointSlices.List()
	}
	return o
}

// Uninstalling reports whether the uninstall mark stands on the speakers'
// DaemonSet, or stood there when the DaemonSet was deleted: daemons outlive it
// for a moment, in which they must not take up their work again.
func (k *Cluster) Uninstalling() bool {
	for _, d := range k.daemonSets.List() {
		k.uninstalling.Store(d.Annotations[UninstallMark] == "true")
	}
	return k.uninstalling.Load()
}

// WaitUntilUninstalling blocks until the mark stands; it returns the error of ctx.
func (k *Cluster) WaitUntilUninstalling(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, markInterval, true, func(context.Context) (bool, error) { return k.Uninstalling(), nil })
}

// WaitWhileUninstalling blocks until the mark is off again; it returns the error of ctx.
func (k *Cluster) WaitWhileUninstalling(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, markInterval, true, func(context.Context) (bool, error) { return !k.Uninstalling(), nil })
}

// markInterval is between looks at the uninstall mark, which the watch keeps current.
const markInterval = 250 * time.Millisecond

// SpeakerAddresses returns the host addresses of the speakers' pods, by node.
func (k *Cluster) SpeakerAddresses() map[string]netip.Addr {
	out := map[string]netip.Addr{}
	for _, p := range k.pods.List() {
		if a, err := netip.ParseAddr(p.Status.HostIP); err == nil && p.Spec.NodeName != "" {
			out[p.Spec.NodeName] = a
		}
	}
	return out
}

// StoppingSpeakers returns the names of nodes whose speaker's pod is being
// deleted, and has no successor there yet.
func (k *Cluster) StoppingSpeakers() map[string]bool {
	out := map[string]bool{}
	for _, p := range k.pods.List() {
		stopping, seen := out[p.Spec.NodeName]
		out[p.Spec.NodeName] = p.DeletionTimestamp != nil && (stopping || !seen)
	}
	maps.DeleteFunc(out, func(_ string, stopping bool) bool { return !stopping })
	return out
}

// PeerUID returns the UID of a BGPPeer, "" when it is not known.
func (k *Cluster) PeerUID(name string) types.UID {
	for _, p := range k.peers.List() {
		if p.Name == name {
			return p.UID
		}
	}
	return ""
}

// Refresh lists Services from the API server itself, past every cache, and
// overlays what the watch does not show yet. A new leader needs it: what its
// predecessor wrote last must not be decided again.
func (k *Cluster) Refresh(ctx context.Context) error {
	list, err := k.clients.kube.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	for i := range list.Items {
		k.services.wrote(&list.Items[i])
	}
	return nil
}
