// Package k8s is Holdfast's access to the API server: a source of objects, kept
// current by informers that kick, and the writer of status, conditions and
// Events. It decides nothing: the content of a status comes from its callers.
package k8s

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

// UninstallMark is the annotation on the speakers' DaemonSet that orders every
// daemon to clean up and stop. It vanishes with the DaemonSet.
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
	// Proxies is the Service of the proxies, whose endpoints a decision may depend on; zero for none.
	Proxies lb.Key
	// Speaker also watches what only a speaker needs: endpoints and the pods of the other speakers.
	Speaker bool
	// Kick is called after every change that can change a decision.
	Kick func()
	// KickStates is called after every change of a SpeakerState; only a controller watches these.
	KickStates func()
	// Proxy watches only what the agent of a proxy needs, which has no right to more.
	Proxy bool
	// Endpoints makes a controller watch endpoints too, to withdraw those on dead nodes.
	Endpoints bool
}

// SpeakerLabels select the pods of the speakers in Holdfast's namespace.
const SpeakerLabels = "app.kubernetes.io/name=holdfast,app.kubernetes.io/component=speaker"

// Cluster reads and writes the API server's objects.
type Cluster struct {
	clients Clients
	config  Config
	synced  atomic.Bool
	// uninstalling: the DaemonSet had the uninstall mark when last seen.
	uninstalling atomic.Bool
	views        []interface {
		run(ctx context.Context)
		waitForSync(ctx context.Context) bool
		version() uint64
	}
	events   *recorder
	burst    *rate.Limiter
	attempts attempts

	services          *View[*corev1.Service] // of a proxy
	heldServices      *View[heldService]     // of the others
	namespaces        *View[*corev1.Namespace]
	nodes             *View[*corev1.Node]
	pools             *View[*v1beta1.IPAddressPool]
	memories          *View[*v1beta1.PoolMemory]
	floatingIPs       *View[*v1beta1.FloatingIP]
	l2Advertisements  *View[*v1beta1.L2Advertisement]
	bgpAdvertisements *View[*v1beta1.BGPAdvertisement]
	peers             *View[*v1beta1.BGPPeer]
	bfdProfiles       *View[*v1beta1.BFDProfile]
	communities       *View[*v1beta1.Community]
	daemonSets        *View[*appsv1.DaemonSet]
	endpointSlices    *View[*discoveryv1.EndpointSlice]
	heldSlices        *View[heldSlice] // in place of endpointSlices where they are read only when they changed, or seldom
	pods              *View[*corev1.Pod]
	speakers          atomic.Pointer[speakers]
	speakerStates     *View[*v1beta1.SpeakerState]
	secrets           *View[*corev1.Secret]
}

// New returns a Cluster that Run starts.
func New(clients Clients, c Config) (*Cluster, error) {
	k := &Cluster{clients: clients, config: c, events: newRecorder(c.Component), burst: newBurst()}
	core := clients.kube.core
	apps := clients.kube.apps
	own := fields.OneTermEqualSelector("metadata.name", c.DaemonSet)
	// No other Secret of the namespace comes into memory.
	basicAuth := fields.OneTermEqualSelector("type", string(corev1.SecretTypeBasicAuth))
	errs := []error{watch(k, &k.nodes, core, "nodes", "", nil, nil, c.Kick)}
	if c.Proxy {
		errs = append(errs, k.watchAsProxy(core)...)
		return k, errors.Join(errs...)
	}
	errs = append(errs,
		watch(k, &k.secrets, core, "secrets", c.Namespace, func(o *metav1.ListOptions) { o.FieldSelector = basicAuth.String() }, sameSecret, c.Kick),
		watch(k, &k.daemonSets, apps, "daemonsets", c.Namespace, func(o *metav1.ListOptions) { o.FieldSelector = own.String() }, nil, c.Kick))
	if c.Speaker {
		errs = append(errs, k.watchAsSpeaker(core)...)
	} else {
		errs = append(errs, k.watchAsController(core)...)
	}
	return k, errors.Join(errs...)
}

func (k *Cluster) watchAsController(core rest.Interface) []error {
	own, kick := k.clients.holdfast, k.config.Kick
	errs := []error{
		watchAs(k, &k.heldServices, core, "services", "", nil, &corev1.Service{}, packing(toController), k.sameHeld, kick),
		watch(k, &k.namespaces, core, "namespaces", "", nil, sameNamespace, kick),
		watch(k, &k.pools, own, "ipaddresspools", "", nil, nil, kick),
		watch(k, &k.l2Advertisements, own, "l2advertisements", "", nil, nil, kick),
		watch(k, &k.bgpAdvertisements, own, "bgpadvertisements", "", nil, nil, kick),
		watch(k, &k.peers, own, "bgppeers", "", nil, nil, kick),
		watch(k, &k.bfdProfiles, own, "bfdprofiles", "", nil, nil, kick),
		watch(k, &k.communities, own, "communities", "", nil, nil, kick),
		watch(k, &k.floatingIPs, own, "floatingips", "", nil, nil, kick),
		watch(k, &k.memories, own, "poolmemories", "", nil, nil, kick),
	}
	errs = append(errs, watch(k, &k.speakerStates, own, "speakerstates", "", nil, nil, k.config.KickStates))
	// A change of an endpoint decides nothing: they are read when a node is dead, and by times if there may be proxies.
	discovery, endpoints, never := k.clients.kube.discovery, "endpointslices", func() {}
	switch {
	case !k.config.Endpoints:
	case k.config.Proxies == lb.Key{}:
		errs = append(errs, watchAs(k, &k.heldSlices, discovery, endpoints, "", nil, &discoveryv1.EndpointSlice{}, packPods, nil, never))
	default:
		errs = append(errs, watch(k, &k.endpointSlices, discovery, endpoints, "", nil, nil, never))
	}
	return errs
}

func (k *Cluster) watchAsSpeaker(core rest.Interface) []error {
	own, kick := k.clients.holdfast, k.config.Kick
	speakers := func(o *metav1.ListOptions) { o.LabelSelector = SpeakerLabels }
	return []error{
		watchAs(k, &k.heldServices, core, "services", "", nil, &corev1.Service{}, packing(decides), k.sameHeld, kick),
		watch(k, &k.pools, own, "ipaddresspools", "", nil, sameConfig, kick),
		watch(k, &k.l2Advertisements, own, "l2advertisements", "", nil, sameConfig, kick),
		watch(k, &k.bgpAdvertisements, own, "bgpadvertisements", "", nil, sameConfig, kick),
		watch(k, &k.peers, own, "bgppeers", "", nil, sameConfig, kick),
		watch(k, &k.bfdProfiles, own, "bfdprofiles", "", nil, sameConfig, kick),
		watch(k, &k.communities, own, "communities", "", nil, sameConfig, kick),
		watchAs(k, &k.heldSlices, k.clients.kube.discovery, "endpointslices", "", nil, &discoveryv1.EndpointSlice{}, k.packSlice, k.sameEndpoints, kick),
		watch(k, &k.pods, core, "pods", k.config.Namespace, speakers, samePod, kick),
	}
}

func (k *Cluster) watchAsProxy(core rest.Interface) []error {
	kick := k.config.Kick
	return []error{
		watch(k, &k.services, core, "services", "", nil, func(a, b *corev1.Service) bool { return decides(a) == decides(b) }, kick),
		watch(k, &k.namespaces, core, "namespaces", "", nil, sameNamespace, kick),
		watch(k, &k.pools, k.clients.holdfast, "ipaddresspools", "", nil, sameConfig, kick),
		watch(k, &k.endpointSlices, k.clients.kube.discovery, "endpointslices", "", nil, sameSlice, kick),
	}
}

// Run watches until ctx is cancelled and returns nil. Broken watches resume by themselves.
func (k *Cluster) Run(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error {
		k.events.run(ctx, eventSink{kindOf(k.clients.paced, "events", func() *corev1.Event { return &corev1.Event{} })}, k.InBurst)
		return nil
	})
	for _, v := range k.views {
		group.Go(func() error { v.run(ctx); return nil })
	}
	if k.WaitForSync(ctx) == nil {
		k.synced.Store(true)
		k.config.Kick()
	}
	return group.Wait()
}

// Synced reports whether every view that WaitForSync waits for shows all that existed at the start.
func (k *Cluster) Synced() bool { return k.synced.Load() }

// WaitForSync blocks until Synced, or returns the error of ctx. It does not wait for SpeakerStates, which
// every node writes: no assignment may depend on them. It waits for Secrets for a short time only.
func (k *Cluster) WaitForSync(ctx context.Context) error {
	for _, v := range k.views {
		if v != k.speakerStates && v != k.secrets && !v.waitForSync(ctx) {
			return ctx.Err()
		}
	}
	if k.secrets == nil {
		return ctx.Err()
	}
	// Layer 2 must not depend on the right to read Secrets.
	brief, cancel := context.WithTimeout(ctx, secretsTime)
	defer cancel()
	k.secrets.waitForSync(brief)
	return ctx.Err()
}

// secretsTime is how long the start waits for the Secrets. Until they are there, peers that name one are not used.
const secretsTime = 5 * time.Second

// WaitForSpeakerStates blocks until the view of the SpeakerStates shows all that existed at the start, or
// returns the error of ctx.
func (k *Cluster) WaitForSpeakerStates(ctx context.Context) error {
	if !k.speakerStates.waitForSync(ctx) {
		return ctx.Err()
	}
	return nil
}

// Objects returns everything that decisions depend on.
func (k *Cluster) Objects() config.Objects {
	if k.config.Proxy {
		return config.Objects{Pools: k.pools.List(), Services: k.services.List(), EndpointSlices: k.endpointSlices.List(), Nodes: k.nodes.List(),
			Namespaces: k.namespaces.List()}
	}
	o := config.Objects{
		Pools:             k.pools.List(),
		L2Advertisements:  k.l2Advertisements.List(),
		BGPAdvertisements: k.bgpAdvertisements.List(),
		Peers:             k.peers.List(),
		BFDProfiles:       k.bfdProfiles.List(),
		Communities:       k.communities.List(),
		Nodes:             k.nodes.List(),
		Secrets:           k.secrets.List(),
		SecretNamespace:   k.config.Namespace,
	}
	if o.HeldServices = k.heldServices.Map(); k.config.Speaker {
		o.HeldSlices = k.heldSlices.Map()
	} else {
		o.Namespaces, o.FloatingIPs, o.PoolMemories = k.namespaces.List(), k.floatingIPs.List(), k.memories.List()
	}
	return o
}

// Version is another number whenever Objects may return something else than before. Read it before Objects.
func (k *Cluster) Version() uint64 {
	var sum uint64
	for _, v := range k.views {
		sum += v.version()
	}
	return sum
}

// HeldServices returns all Services. A proxy has none.
func (k *Cluster) HeldServices() lb.Map[lb.Key, config.Held[corev1.Service]] {
	return k.heldServices.Map()
}

// Services returns how to read a Service, as all are now: nil if there is none. A proxy has none.
func (k *Cluster) Services() func(lb.Key) *corev1.Service {
	all := k.HeldServices()
	return func(key lb.Key) *corev1.Service {
		h, there := all.Get(key)
		if !there {
			return nil
		}
		return h.Read()
	}
}

// Nodes returns those that are known.
func (k *Cluster) Nodes() []*corev1.Node { return k.nodes.List() }

// Uninstalling reports whether the speakers' DaemonSet has the uninstall mark, or
// had it when it was deleted: daemons outlive the DaemonSet for a moment, and must
// not resume work then.
func (k *Cluster) Uninstalling() bool {
	for _, d := range k.daemonSets.List() {
		k.uninstalling.Store(d.Annotations[UninstallMark] == "true")
	}
	return k.uninstalling.Load()
}

// WaitUninstalling blocks until the mark is set, or is not; it returns the error of ctx.
func (k *Cluster) WaitUninstalling(ctx context.Context, set bool) error {
	return wait.PollUntilContextCancel(ctx, markInterval, true, func(context.Context) (bool, error) { return k.Uninstalling() == set, nil })
}

// markInterval is how often the waits check the uninstall mark, which the watch keeps current.
const markInterval = 250 * time.Millisecond

// speakers are the nodes of the speakers' pods.
type speakers struct {
	of        []*corev1.Pod
	addresses map[string]netip.Addr
	stopping  map[string]bool
}

// speakersNow returns the nodes of the speakers' pods: what it returned before while these are the same.
func (k *Cluster) speakersNow() *speakers {
	pods := k.pods.List()
	if last := k.speakers.Load(); last != nil && lb.Same(last.of, pods) {
		return last
	}
	s := &speakers{pods, map[string]netip.Addr{}, map[string]bool{}}
	for _, p := range pods {
		if a, err := netip.ParseAddr(p.Status.HostIP); err == nil && p.Spec.NodeName != "" {
			s.addresses[p.Spec.NodeName] = a
		}
		stopping, seen := s.stopping[p.Spec.NodeName]
		s.stopping[p.Spec.NodeName] = p.DeletionTimestamp != nil && (stopping || !seen)
	}
	maps.DeleteFunc(s.stopping, func(_ string, stopping bool) bool { return !stopping })
	k.speakers.Store(s)
	return s
}

// SpeakerAddresses returns the host addresses of the speakers' pods, by node. They must not be changed.
func (k *Cluster) SpeakerAddresses() map[string]netip.Addr { return k.speakersNow().addresses }

// StoppingSpeakers returns the names of nodes whose speaker pod is being
// deleted and has no successor yet.
func (k *Cluster) StoppingSpeakers() map[string]bool { return maps.Clone(k.speakersNow().stopping) }
