package k8s

import (
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// watchCommon watches the kinds that speakers and controllers need.
func (k *Cluster) watchCommon() {
	// The selector keeps the other Secrets of the namespace out of memory.
	basicAuth := fields.OneTermEqualSelector("type", string(corev1.SecretTypeBasicAuth)).String()
	watch(k, &k.secrets, watchOptions[*corev1.Secret]{
		client:    k.clients.kube.core,
		resource:  "secrets",
		namespace: k.config.Namespace,
		restrict:  func(o *metav1.ListOptions) { o.FieldSelector = basicAuth },
		same:      sameSecret,
		kick:      k.config.Kick,
	})

	own := fields.OneTermEqualSelector("metadata.name", k.config.DaemonSet).String()
	watch(k, &k.daemonSets, watchOptions[*appsv1.DaemonSet]{
		client:    k.clients.kube.apps,
		resource:  "daemonsets",
		namespace: k.config.Namespace,
		restrict:  func(o *metav1.ListOptions) { o.FieldSelector = own },
		kick:      k.config.Kick,
	})

	watchConfig(k, &k.l2Advertisements, "l2advertisements", sameConfig)
	watchConfig(k, &k.bgpAdvertisements, "bgpadvertisements", sameConfig)
	watchConfig(k, &k.peers, "bgppeers", sameConfig)
	watchConfig(k, &k.bfdProfiles, "bfdprofiles", sameConfig)
	watchConfig(k, &k.communities, "communities", sameConfig)
}

// watchAsSpeaker watches the kinds that only a speaker needs, and Services as a speaker needs them.
func (k *Cluster) watchAsSpeaker() {
	watch(k, &k.pods, watchOptions[*corev1.Pod]{
		client:    k.clients.kube.core,
		resource:  "pods",
		namespace: k.config.Namespace,
		restrict:  func(o *metav1.ListOptions) { o.LabelSelector = SpeakerLabels },
		same:      samePod,
		kick:      k.config.Kick,
	})

	k.watchServices(decides)
	k.watchEndpoints(k.dropPods, k.sameEndpoints, k.config.Kick)
	if k.config.Node != "" {
		k.watchEgressAsSpeaker()
	}
}

// watchAsController watches the kinds that only a controller needs, and Services as a controller needs them.
func (k *Cluster) watchAsController() {
	k.watchServices(toController)
	watchConfig(k, &k.floatingIPs, "floatingips", sameConfig)
	watchConfig(k, &k.memories, "poolmemories", sameConfig)
	watchConfig(k, &k.allocations, "egressallocations", sameConfig)
	k.watchEgressPods(nil)
	watch(k, &k.speakerStates, watchOptions[*v1beta1.SpeakerState]{
		client:   k.clients.holdfast,
		resource: speakerStates,
		kick:     k.config.KickStates,
	})

	if !k.config.Endpoints {
		return
	}

	drop := dropAddresses
	if k.config.Proxies != (lb.Key{}) {
		drop = func(*discoveryv1.EndpointSlice) {}
	}
	// Changes do not kick: endpoints are read when a node is dead, and from time to time for proxied Services.
	k.watchEndpoints(drop, nil, func() {})
}

// watchNamespaces watches the namespaces, of which only the labels matter.
func (k *Cluster) watchNamespaces() {
	watch(k, &k.namespaces, watchOptions[*corev1.Namespace]{
		client:   k.clients.kube.core,
		resource: "namespaces",
		same:     sameNamespace,
		kick:     k.config.Kick,
	})
}

// watchServices watches the Services. decides returns a digest of the parts that decisions of this process depend on.
func (k *Cluster) watchServices(decides func(*corev1.Service) uint64) {
	watch(k, &k.services, watchOptions[*corev1.Service]{
		client:   k.clients.kube.core,
		resource: "services",
		same:     k.sameService(decides),
		kick:     k.config.Kick,
	})
}

// watchEndpoints watches the EndpointSlices. drop drops what the process does not read.
func (k *Cluster) watchEndpoints(
	drop func(*discoveryv1.EndpointSlice),
	same func(before, after *discoveryv1.EndpointSlice) bool,
	kick func(),
) {
	watch(k, &k.endpointSlices, watchOptions[*discoveryv1.EndpointSlice]{
		client:    k.clients.kube.discovery,
		resource:  "endpointslices",
		transform: trimSlices(drop),
		same:      same,
		kick:      kick,
	})
}

// watchConfig watches a kind of holdfast.dev. Changes that same reports as equal kick a controller only, which writes
// the statuses.
func watchConfig[T object](k *Cluster, view **View[T], resource string, same func(before, after T) bool) {
	if k.config.isController() {
		same = nil
	}

	watch(k, view, watchOptions[T]{
		client:   k.clients.holdfast,
		resource: resource,
		same:     same,
		kick:     k.config.Kick,
	})
}
