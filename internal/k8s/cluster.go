// Package k8s is Holdfast's access to the API server: a source of objects, kept current by informers, and the writer of
// statuses, conditions and Events. It also elects the leader of the controllers, and fences the leader's writes.
//
// Changes of objects kick the loops of the daemon, which then read Objects. What a daemon decides comes back as writes.
//
//	clients, err := k8s.Connect(kubeconfig, "holdfast-controller")
//	cluster := k8s.New(clients, k8s.Config{Log: log, Kick: loop.Kick})
//	go cluster.Run(ctx)
//	objects := cluster.Objects() // after WaitForSync
//
// The package must not decide anything: the content of a status comes from its callers.
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
	"k8s.io/apimachinery/pkg/util/wait"
)

// UninstallMark is the annotation on the speakers' DaemonSet that orders every daemon to clean up and stop. It is
// deleted with the DaemonSet.
const UninstallMark = "holdfast.dev/uninstall"

// Config configures a Cluster.
type Config struct {
	Log *slog.Logger
	// Component is the source of the Events, for example holdfast-controller.
	Component string
	// Namespace is the namespace that Holdfast runs in.
	Namespace string
	// DaemonSet is the name of the speakers' DaemonSet, in Namespace.
	DaemonSet string
	// Node is the node of a speaker, which reads the pods there.
	Node string
	// Proxies is the Service of the proxies, whose endpoints a decision may depend on; zero for none.
	Proxies lb.Key
	// Speaker reports whether the Cluster is for a speaker, which also needs endpoints and the pods of the other
	// speakers.
	Speaker bool
	// Kick is called after every change that can change a decision.
	Kick func()
	// KickStates is called after every change of a SpeakerState. Only a controller watches these.
	KickStates func()
	// Proxy reports whether the Cluster is for the agent of a proxy, which has no right to read more than it needs.
	Proxy bool
	// Endpoints makes a controller watch endpoints too, to withdraw endpoints on dead nodes.
	Endpoints bool
}

// SpeakerLabels select the pods of the speakers in Holdfast's namespace.
const SpeakerLabels = "app.kubernetes.io/name=holdfast,app.kubernetes.io/component=speaker"

// Cluster reads and writes the API server's objects.
type Cluster struct {
	clients Clients
	config  Config
	synced  atomic.Bool
	// uninstalling reports whether the DaemonSet had the uninstall mark when it was last seen.
	uninstalling atomic.Bool
	views        []viewer
	events       *recorder
	burst        *rate.Limiter
	attempts     attempts
	// unread counts changes of Services without an effect. Only the goroutine that handles changes uses it.
	unread int

	// Views of kinds that a process does not watch are nil.
	services          *View[*corev1.Service]
	namespaces        *View[*corev1.Namespace]
	nodes             *View[*corev1.Node]
	pools             *View[*v1beta1.IPAddressPool]
	memories          *View[*v1beta1.PoolMemory]
	allocations       *View[*v1beta1.EgressAllocation]
	floatingIPs       *View[*v1beta1.FloatingIP]
	l2Advertisements  *View[*v1beta1.L2Advertisement]
	bgpAdvertisements *View[*v1beta1.BGPAdvertisement]
	peers             *View[*v1beta1.BGPPeer]
	bfdProfiles       *View[*v1beta1.BFDProfile]
	communities       *View[*v1beta1.Community]
	daemonSets        *View[*appsv1.DaemonSet]
	endpointSlices    *View[*discoveryv1.EndpointSlice]
	pods              *View[*corev1.Pod]
	speakers          atomic.Pointer[speakerPods]
	speakerStates     *View[*v1beta1.SpeakerState]
	serviceCIDRs      serviceCIDRs
	secrets           *View[*corev1.Secret]
	egress            egressViews
}

// viewer is a View of any kind.
type viewer interface {
	run(ctx context.Context)
	waitForSync(ctx context.Context) bool
	version() uint64
}

// New returns a Cluster. It watches nothing until Run is called.
func New(clients Clients, c Config) *Cluster {
	k := &Cluster{
		clients:  clients,
		config:   c,
		events:   newRecorder(c.Component),
		burst:    newBurst(),
		attempts: newAttempts(),
		egress:   egressViews{wanted: make(chan struct{})},
	}
	watch(k, &k.nodes, watchOptions[*corev1.Node]{
		client:   clients.kube.core,
		resource: "nodes",
		kick:     c.Kick,
	})
	watchConfig(k, &k.pools, "ipaddresspools", samePool)

	switch {
	case c.Speaker:
		k.watchCommon()
		k.watchAsSpeaker()
	case c.Proxy:
		k.watchNamespaces()
		k.watchServices(decides)
		k.watchEndpoints(k.dropPods, k.sameEndpoints, c.Kick)
	default:
		k.watchNamespaces()
		k.watchCommon()
		k.watchAsController()
	}

	return k
}

// isController reports whether the Cluster is for a controller, which writes statuses and watches them too.
func (c Config) isController() bool { return !c.Speaker && !c.Proxy }

// Run watches until ctx is cancelled, and returns nil. Broken watches resume by themselves.
func (k *Cluster) Run(ctx context.Context) error {
	var group errgroup.Group
	group.Go(func() error {
		sink := eventSink{kindOf[corev1.Event](k.clients.paced, "events")}
		k.events.run(ctx, sink, k.InBurst)
		return nil
	})
	for _, v := range k.views {
		if k.egress.isLate(v) {
			continue
		}

		group.Go(func() error {
			v.run(ctx)
			return nil
		})
	}

	group.Go(func() error { return k.runLate(ctx) })
	if k.config.isController() {
		group.Go(func() error {
			return k.serviceCIDRs.run(ctx, k)
		})
	}

	if k.WaitForSync(ctx) == nil {
		k.synced.Store(true)
		k.config.Kick()
	}

	return group.Wait()
}

// Synced reports whether WaitForSync has returned: every view that it waits for shows all objects that existed at the
// start.
func (k *Cluster) Synced() bool { return k.synced.Load() }

// WaitForSync blocks until Synced, or returns the error of ctx. It does not wait for SpeakerStates, which every node
// writes: no assignment may depend on them. It waits for Secrets, and for what a speaker needs for outgoing
// connections, only for some seconds.
func (k *Cluster) WaitForSync(ctx context.Context) error {
	for _, v := range k.views {
		mustWait := v != k.speakerStates &&
			v != k.secrets &&
			!k.egress.isLate(v)
		if mustWait && !v.waitForSync(ctx) {
			return ctx.Err()
		}
	}

	if k.config.Speaker {
		k.waitForEgress(ctx)
	}

	if k.secrets != nil {
		// Layer 2 must not depend on the right to read Secrets.
		secretsCtx, cancel := context.WithTimeout(ctx, secretsTimeout)
		defer cancel()
		k.secrets.waitForSync(secretsCtx)
	}

	return ctx.Err()
}

// secretsTimeout bounds the wait for the Secrets at the start. Until they are read, peers that name one are not used.
const secretsTimeout = 5 * time.Second

// WaitForSpeakerStates blocks until the view of the SpeakerStates shows all that existed at the start, or returns the
// error of ctx.
func (k *Cluster) WaitForSpeakerStates(ctx context.Context) error {
	k.speakerStates.waitForSync(ctx)
	return ctx.Err()
}

// Refresh lists Services, namespaces, FloatingIPs, pools, PoolMemories and EgressAllocations from the API server
// itself, past every cache. It overlays what the watch does not show yet.
//
// A new leader needs it, because it must not repeat its predecessor's last decisions. Nor must it assign addresses that
// a FloatingIP has just got or whose release was just recorded, or addresses of pools that do not serve a Service's
// namespace.
func (k *Cluster) Refresh(ctx context.Context) error {
	all := []func(context.Context) error{
		k.services.refresh,
		k.namespaces.refresh,
		k.pools.refresh,
		k.memories.refresh,
		k.floatingIPs.refresh,
		k.allocations.refresh,
	}
	for _, refresh := range all {
		if err := refresh(ctx); err != nil {
			return err
		}
	}

	k.serviceCIDRs.refresh(ctx, k)
	return nil
}

// Objects returns all objects that decisions depend on.
func (k *Cluster) Objects() config.Objects {
	o := config.Objects{
		Pools:             k.pools.List(),
		PoolMemories:      k.memories.List(),
		EgressAllocations: k.allocations.List(),
		EgressPods:        k.egress.pods.List(),
		FloatingIPs:       k.floatingIPs.List(),
		L2Advertisements:  k.l2Advertisements.List(),
		BGPAdvertisements: k.bgpAdvertisements.List(),
		Peers:             k.peers.List(),
		BFDProfiles:       k.bfdProfiles.List(),
		Communities:       k.communities.List(),
		ServicesByKey:     k.services.Map(),
		NodesByKey:        k.nodes.Map(),
		Namespaces:        k.namespaces.List(),
		Secrets:           k.secrets.List(),
		SecretNamespace:   k.config.Namespace,
		ServiceCIDRs:      k.serviceCIDRs.all(),
	}
	// A controller without proxies has only the pods of endpoints.
	if k.config.Speaker || k.config.Proxies != (lb.Key{}) {
		o.SlicesByKey = k.endpointSlices.Map()
	}

	return o
}

// Version returns another number whenever Objects may return something else than before. Call it before Objects.
func (k *Cluster) Version() uint64 {
	var sum uint64
	for _, v := range k.views {
		sum += v.version()
	}
	return sum
}

// Services returns all Services.
func (k *Cluster) Services() lb.Map[lb.Key, *corev1.Service] {
	return k.services.Map()
}

// Nodes returns all Nodes.
func (k *Cluster) Nodes() []*corev1.Node {
	return k.nodes.List()
}

// Uninstalling reports whether the speakers' DaemonSet has the uninstall mark, or had it when it was deleted. Daemons
// outlive the DaemonSet for a moment, and must not resume work then.
func (k *Cluster) Uninstalling() bool {
	for _, d := range k.daemonSets.List() {
		k.uninstalling.Store(d.Annotations[UninstallMark] == "true")
	}
	return k.uninstalling.Load()
}

// WaitUninstalling blocks until Uninstalling returns the wanted result, or returns the error of ctx.
func (k *Cluster) WaitUninstalling(ctx context.Context, want bool) error {
	isDone := func(context.Context) (bool, error) {
		return k.Uninstalling() == want, nil
	}
	return wait.PollUntilContextCancel(ctx, markInterval, true, isDone)
}

// markInterval is the time between two checks of the uninstall mark.
const markInterval = 250 * time.Millisecond

// speakerPods is what the speakers' pods show of their nodes.
type speakerPods struct {
	// pods are the pods that the maps were made from.
	pods []*corev1.Pod
	// addresses are the host addresses of the nodes.
	addresses map[string]netip.Addr
	// stopping has the nodes whose pods are all being deleted.
	stopping map[string]bool
}

// speakerPods returns what the speakers' pods show. The result stays the same as long as the pods do.
func (k *Cluster) speakerPods() *speakerPods {
	pods := k.pods.List()
	last := k.speakers.Load()
	if last != nil && lb.Same(last.pods, pods) {
		return last
	}

	s := &speakerPods{
		pods:      pods,
		addresses: map[string]netip.Addr{},
		stopping:  map[string]bool{},
	}
	for _, p := range pods {
		node := p.Spec.NodeName
		a, err := netip.ParseAddr(p.Status.HostIP)
		if err == nil && node != "" {
			s.addresses[node] = a
		}

		areOthersStopping, hasOthers := s.stopping[node]
		isStopping := p.DeletionTimestamp != nil
		s.stopping[node] = isStopping && (areOthersStopping || !hasOthers)
	}

	maps.DeleteFunc(s.stopping, func(_ string, isStopping bool) bool {
		return !isStopping
	})

	k.speakers.Store(s)
	return s
}

// SpeakerAddresses returns the host addresses of the speakers' pods, by node. The map must not be changed.
func (k *Cluster) SpeakerAddresses() map[string]netip.Addr {
	return k.speakerPods().addresses
}

// StoppingSpeakers returns the names of nodes whose speaker pod is being deleted and has no successor yet.
func (k *Cluster) StoppingSpeakers() map[string]bool {
	return maps.Clone(k.speakerPods().stopping)
}

const (
	// burstRate and burstSize bound the Services that get or lose addresses, per second and at once, before that counts
	// as a burst.
	burstRate = 10
	burstSize = 10
)

// newBurst returns the bucket from which each Service takes a token when its addresses change. It holds burstRate
// tokens above the threshold, so that a burst ends a second after its last Service.
func newBurst() *rate.Limiter { return rate.NewLimiter(burstRate, burstSize+burstRate) }

// InBurst reports whether many Services are getting addresses. Users wait for each of these writes, so less urgent
// writes are delayed.
func (k *Cluster) InBurst() bool { return k.burst.Tokens() < burstRate }
