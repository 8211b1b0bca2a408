// Package k8s is Holdfast's access to the API server: a source of objects, kept
// current by informers that kick, and the writer of status, conditions and
// Events. It decides nothing: the content of a status comes from its callers.
package k8s

import (
	"context"
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
	"k8s.io/client-go/tools/cache"
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
	// unread counts changes of Services that decided nothing; it belongs to the goroutine that reports these.
	unread int

	// A view of what a process does not watch is nil.
	services          *View[heldService]
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
	endpointSlices    *View[heldSlice]
	pods              *View[*corev1.Pod]
	speakers          atomic.Pointer[speakers]
	speakerStates     *View[*v1beta1.SpeakerState]
	serviceCIDRs      serviceCIDRs
	secrets           *View[*corev1.Secret]
}

// New returns a Cluster that Run starts.
func New(clients Clients, c Config) *Cluster {
	k := &Cluster{
		clients:  clients,
		config:   c,
		events:   newRecorder(c.Component),
		burst:    newBurst(),
		attempts: newAttempts(),
	}
	core := clients.kube.core
	watch(k, &k.nodes, core, "nodes", "", nil, nil, c.Kick)
	watchPools(k)
	if !c.Speaker {
		watch(k, &k.namespaces, core, "namespaces", "", nil, sameNamespace, c.Kick)
	}
	if !c.Proxy {
		own := fields.OneTermEqualSelector("metadata.name", c.DaemonSet).String()
		// No other Secret of the namespace comes into memory.
		basicAuth := fields.OneTermEqualSelector("type", string(corev1.SecretTypeBasicAuth)).String()
		watch(
			k,
			&k.secrets,
			core,
			"secrets",
			c.Namespace,
			func(o *metav1.ListOptions) { o.FieldSelector = basicAuth },
			sameSecret,
			c.Kick,
		)
		watch(
			k,
			&k.daemonSets,
			clients.kube.apps,
			"daemonsets",
			c.Namespace,
			func(o *metav1.ListOptions) { o.FieldSelector = own },
			nil,
			c.Kick,
		)
		watchConfig(k, &k.l2Advertisements, "l2advertisements")
		watchConfig(k, &k.bgpAdvertisements, "bgpadvertisements")
		watchConfig(k, &k.peers, "bgppeers")
		watchConfig(k, &k.bfdProfiles, "bfdprofiles")
		watchConfig(k, &k.communities, "communities")
	}
	if c.Speaker {
		speakers := func(o *metav1.ListOptions) { o.LabelSelector = SpeakerLabels }
		watch(k, &k.pods, core, "pods", c.Namespace, speakers, samePod, c.Kick)
	}
	if c.controls() {
		k.watchAsController()
		return k
	}
	watchAs(k, &k.services, core, "services", "", nil, &corev1.Service{}, packing(decides), k.sameHeld, c.Kick)
	k.watchEndpoints(k.packSlice, k.sameEndpoints, c.Kick)
	return k
}

// controls reports whether it is a controller, which writes statuses and watches them too.
func (c Config) controls() bool { return !c.Speaker && !c.Proxy }

func (k *Cluster) watchAsController() {
	watchAs(
		k,
		&k.services,
		k.clients.kube.core,
		"services",
		"",
		nil,
		&corev1.Service{},
		packing(toController),
		k.sameHeld,
		k.config.Kick,
	)
	watchConfig(k, &k.floatingIPs, "floatingips")
	watchConfig(k, &k.memories, "poolmemories")
	watch(k, &k.speakerStates, k.clients.holdfast, speakerStates, "", nil, nil, k.config.KickStates)
	packs := packPods
	if k.config.Proxies != (lb.Key{}) {
		packs = pack[discoveryv1.EndpointSlice]
	}
	if k.config.Endpoints { // a change decides nothing: they are read when a node is dead, and for proxied Services by times
		k.watchEndpoints(packs, nil, func() {})
	}
}

func (k *Cluster) watchEndpoints(transform cache.TransformFunc, same func(old, new heldSlice) bool, kick func()) {
	watchAs(
		k,
		&k.endpointSlices,
		k.clients.kube.discovery,
		"endpointslices",
		"",
		nil,
		&discoveryv1.EndpointSlice{},
		transform,
		same,
		kick,
	)
}

// watchConfig watches a kind of holdfast.dev.
func watchConfig[T object](k *Cluster, view **View[T], resource string) {
	same := sameConfig[T]
	if k.config.controls() {
		same = nil
	}
	watch(k, view, k.clients.holdfast, resource, "", nil, same, k.config.Kick)
}

// watchPools watches the pools, of whose status speakers read what is guarded.
func watchPools(k *Cluster) {
	same := samePool
	if k.config.controls() {
		same = nil
	}
	watch(k, &k.pools, k.clients.holdfast, "ipaddresspools", "", nil, same, k.config.Kick)
}

// Run watches until ctx is cancelled and returns nil. Broken watches resume by themselves.
func (k *Cluster) Run(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error {
		k.events.run(ctx, eventSink{kindOf[corev1.Event](k.clients.paced, "events")}, k.InBurst)
		return nil
	})
	for _, v := range k.views {
		group.Go(func() error { v.run(ctx); return nil })
	}
	if k.config.controls() {
		group.Go(func() error { return k.serviceCIDRs.run(ctx, k) })
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
	if k.secrets != nil {
		// Layer 2 must not depend on the right to read Secrets.
		brief, cancel := context.WithTimeout(ctx, secretsTime)
		defer cancel()
		k.secrets.waitForSync(brief)
	}
	return ctx.Err()
}

// secretsTime is how long the start waits for the Secrets. Until they are there, peers that name one are not used.
const secretsTime = 5 * time.Second

// WaitForSpeakerStates blocks until the view of the SpeakerStates shows all that existed at the start, or
// returns the error of ctx.
func (k *Cluster) WaitForSpeakerStates(ctx context.Context) error {
	k.speakerStates.waitForSync(ctx)
	return ctx.Err()
}

// Refresh lists Services, their namespaces, FloatingIPs, pools and their memories from the API server itself, past
// every cache, and overlays what the watch does not show yet. A new leader needs it: it must not repeat its
// predecessor's last decisions, nor assign addresses that a FloatingIP was just given or whose release was just
// recorded, nor of pools that a Service's namespace does not have.
func (k *Cluster) Refresh(ctx context.Context) error {
	for _, refresh := range []func(context.Context) error{
		k.services.refresh, k.namespaces.refresh, k.pools.refresh, k.memories.refresh, k.floatingIPs.refresh,
	} {
		if err := refresh(ctx); err != nil {
			return err
		}
	}
	k.serviceCIDRs.refresh(ctx, k)
	return nil
}

// Objects returns everything that decisions depend on.
func (k *Cluster) Objects() config.Objects {
	o := config.Objects{
		Pools:             k.pools.List(),
		PoolMemories:      k.memories.List(),
		FloatingIPs:       k.floatingIPs.List(),
		L2Advertisements:  k.l2Advertisements.List(),
		BGPAdvertisements: k.bgpAdvertisements.List(),
		Peers:             k.peers.List(),
		BFDProfiles:       k.bfdProfiles.List(),
		Communities:       k.communities.List(),
		HeldServices:      k.services.Map(),
		HeldNodes:         k.nodes.Map(),
		Namespaces:        k.namespaces.List(),
		Secrets:           k.secrets.List(),
		SecretNamespace:   k.config.Namespace,
		ServiceCIDRs:      k.serviceCIDRs.all(),
	}
	// A controller without proxies has nothing of endpoints but their pods.
	if k.config.Speaker || k.config.Proxies != (lb.Key{}) {
		o.HeldSlices = k.endpointSlices.Map()
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

// HeldServices returns all Services.
func (k *Cluster) HeldServices() lb.Map[lb.Key, config.Held[corev1.Service]] {
	return k.services.Map()
}

// Services returns how to read a Service, as all are now: nil if there is none.
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
	return wait.PollUntilContextCancel(
		ctx,
		markInterval,
		true,
		func(context.Context) (bool, error) { return k.Uninstalling() == set, nil },
	)
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

const (
	// burstRate is how many Services a second, and burstSize how many at once, may get
	// or lose addresses before that counts as a burst.
	burstRate = 10
	burstSize = 10
)

// newBurst returns the bucket from which each Service takes a token as its addresses change. It has twice the
// threshold, so that a burst ends a second after its last Service.
func newBurst() *rate.Limiter { return rate.NewLimiter(burstRate, burstSize+burstRate) }

// InBurst reports whether many Services are getting addresses just now. Users wait for each of these writes, so that
// less urgent ones are delayed.
func (k *Cluster) InBurst() bool { return k.burst.Tokens() < burstRate }
