package k8s

import (
	"hash/maphash"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// watch creates the view of one kind. A change kicks unless same reports both versions as equal.
func watch[T object](
	k *Cluster,
	view **View[T],
	client rest.Interface,
	resource, namespace string,
	options func(*metav1.ListOptions),
	same func(old, new T) bool,
	kick func(),
) {
	example := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(runtime.Object)
	watchAs(k, view, client, resource, namespace, options, example, trim, same, kick)
}

// watchAs creates the view of the kind that example is of, as what transform makes of its objects.
func watchAs[T object](
	k *Cluster,
	view **View[T],
	client rest.Interface,
	resource, namespace string,
	options func(*metav1.ListOptions),
	example runtime.Object,
	transform cache.TransformFunc,
	same func(old, new T) bool,
	kick func(),
) {
	if options == nil {
		options = func(*metav1.ListOptions) {}
	}
	lists := cache.NewFilteredListWatchFromClient(client, resource, namespace, options)
	informer := cache.NewSharedIndexInformer(lists, example, 0, cache.Indexers{})
	utilruntime.Must(informer.SetTransform(keeping(informer.GetStore(), transform))) // it does not run yet
	*view = newView(informer, func(old, new T) {
		if same == nil || !same(old, new) {
			kick()
		}
	})
	(*view).source = source{client, resource, example, transform, k.attempts}
	k.views = append(k.views, *view)
}

// keeping is transform, but returns what the store has in place of a version of an object that says nothing else:
// heartbeats of a thousand nodes change no list then, which would be read again, and what is listed again takes no
// memory.
func keeping(store cache.Store, transform cache.TransformFunc) cache.TransformFunc {
	return func(o any) (any, error) {
		out, err := transform(o)
		if err != nil {
			return out, err
		}
		have, there, err := store.Get(out)
		if err != nil || !there {
			return out, nil
		}
		if saysSame(have, out) {
			return have, nil
		}
		if p, is := out.(interface{ share(have any) }); is {
			p.share(have)
		}
		return out, nil
	}
}

// saysSame reports whether one version of an object stands for another: nothing but its version differs, and nobody
// writes the object by that.
func saysSame(have, out any) bool {
	switch b := out.(type) {
	case *corev1.Node:
		a, is := have.(*corev1.Node)
		if !is {
			return false
		}
		one := *a
		one.ResourceVersion = b.ResourceVersion
		return reflect.DeepEqual(&one, b)
	case *corev1.Pod:
		a, is := have.(*corev1.Pod)
		if !is {
			return false
		}
		one := *a
		one.ResourceVersion = b.ResourceVersion
		return reflect.DeepEqual(&one, b)
	case *packedSlice:
		a, is := have.(*packedSlice)
		return is && a.uid == b.uid && a.body == b.body
	case *packedService:
		a, is := have.(*packedService)
		return is && a.uid == b.uid && a.version == b.version && a.body == b.body
	}
	return false
}

// trim drops fields that Holdfast does not read, and shares the texts that many objects have: half of an average
// object, and most of a Node.
func trim(o any) (any, error) {
	if n, is := o.(*corev1.Node); is { // client-go transforms a list twice, and what the first time kept has readers
		one := *n
		one.Annotations, one.Status.Conditions = maps.Clone(n.Annotations), slices.Clone(n.Status.Conditions)
		o = &one
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return o, nil // a tombstone
	}
	managed := m.GetManagedFields()
	m.SetManagedFields(nil)
	switch o := o.(type) {
	case *v1beta1.SpeakerState:
		trimReport(o, managed)
	case *corev1.Service:
		trimService(o)
	case *corev1.Node:
		o.Spec = corev1.NodeSpec{PodCIDRs: o.Spec.PodCIDRs, Unschedulable: o.Spec.Unschedulable, Taints: o.Spec.Taints}
		o.Status = corev1.NodeStatus{Addresses: o.Status.Addresses, Conditions: o.Status.Conditions, DaemonEndpoints: o.Status.DaemonEndpoints}
		o.Labels = sharedKeys(o.Labels)
		maps.DeleteFunc(o.Annotations, func(name, _ string) bool { return name != v1beta1.AnnotationReadyWithoutSessions })
		o.Status.Conditions = slices.DeleteFunc(o.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type != corev1.NodeNetworkUnavailable && c.Type != corev1.NodeReady
		})
		for i, c := range o.Status.Conditions {
			o.Status.Conditions[i] = corev1.NodeCondition{Type: shared(c.Type), Status: shared(c.Status), Message: shared(c.Message)}
		}
		o.Status.Conditions = exact(o.Status.Conditions)
	case *corev1.Secret:
		o.Annotations = nil // kubectl apply keeps a copy of the data there
		maps.DeleteFunc(o.Data, func(entry string, _ []byte) bool { return entry != corev1.BasicAuthPasswordKey })
	case *corev1.Pod:
		o.Spec = corev1.PodSpec{NodeName: o.Spec.NodeName}
	case *discoveryv1.EndpointSlice:
		labels := o.Labels
		o.ObjectMeta = metav1.ObjectMeta{
			Name:              o.Name,
			Namespace:         shared(o.Namespace),
			UID:               o.UID,
			ResourceVersion:   o.ResourceVersion,
			DeletionTimestamp: o.DeletionTimestamp,
			Labels:            map[string]string{discoveryv1.LabelServiceName: o.Labels[discoveryv1.LabelServiceName]},
		}
		for _, name := range []string{config.LabelServiceProxyName, config.LabelHeadless} {
			if _, has := labels[name]; has {
				o.Labels[name] = ""
			}
		}
		o.Endpoints = exact(o.Endpoints)
		for i, e := range o.Endpoints {
			c := discoveryv1.EndpointConditions{Ready: sharedField(e.Conditions.Ready), Serving: sharedField(e.Conditions.Serving)}
			if e.Conditions.Terminating != nil && *e.Conditions.Terminating {
				c.Terminating = sharedField(e.Conditions.Terminating)
			}
			o.Endpoints[i] = discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: c, NodeName: sharedField(e.NodeName), TargetRef: e.TargetRef}
		}
		for i, p := range o.Ports {
			o.Ports[i] = discoveryv1.EndpointPort{Name: sharedField(p.Name), Protocol: sharedField(p.Protocol), Port: sharedField(p.Port)}
		}
	}
	return o, nil
}

func trimService(o *corev1.Service) {
	o.OwnerReferences = nil
	delete(o.Annotations, corev1.LastAppliedConfigAnnotation)
	o.Namespace, o.Labels, o.Annotations = shared(o.Namespace), sharedMap(o.Labels), sharedKeys(o.Annotations)
	for i, f := range o.Finalizers {
		o.Finalizers[i] = shared(f)
	}
	s := &o.Spec
	s.IPFamilies, s.SessionAffinityConfig, s.AllocateLoadBalancerNodePorts, s.TrafficDistribution = nil, nil, nil, nil
	s.Selector = sharedKeys(s.Selector)
	s.Type, s.SessionAffinity, s.ExternalTrafficPolicy = shared(
		s.Type,
	), shared(
		s.SessionAffinity,
	), shared(
		s.ExternalTrafficPolicy,
	)
	s.IPFamilyPolicy, s.InternalTrafficPolicy, s.LoadBalancerClass = sharedField(
		s.IPFamilyPolicy,
	), sharedField(
		s.InternalTrafficPolicy,
	),
		sharedField(
			s.LoadBalancerClass,
		)
	for i, p := range s.Ports {
		s.Ports[i] = corev1.ServicePort{
			Name:     shared(p.Name),
			Protocol: shared(p.Protocol),
			Port:     p.Port,
			NodePort: p.NodePort,
		}
	}
	for i := range o.Status.LoadBalancer.Ingress {
		in := &o.Status.LoadBalancer.Ingress[i]
		in.IPMode = sharedField(in.IPMode)
	}
	o.Status.Conditions = exact(o.Status.Conditions)
	for i := range o.Status.Conditions {
		c := &o.Status.Conditions[i]
		c.Type, c.Status, c.Reason = shared(c.Type), shared(c.Status), shared(c.Reason)
	}
}

// exact returns the list without the room that a decoder leaves at its end: up to as much again.
func exact[T any](list []T) []T {
	if cap(list) == len(list) {
		return list
	}
	return append(make([]T, 0, len(list)), list...)
}

// interned has the values that many objects have, by themselves. It begins again when it is full: tenants choose some
// of them.
var interned = struct {
	sync.Mutex
	known map[any]any
	// maps are some that were seen lately, by their contents.
	maps [512]map[string]string
	seed maphash.Seed
}{seed: maphash.MakeSeed()}

const (
	maxInterned = 16_384
	// maxSharedMap is how many entries a shared map has at most: tenants choose how many labels their objects have.
	maxSharedMap = 16
)

// sharedField returns the one copy of what an optional field has. Nobody may change it.
func sharedField[T comparable](field *T) *T {
	if field == nil {
		return nil
	}
	interned.Lock()
	defer interned.Unlock()
	if one, known := interned.known[*field]; known {
		return one.(*T)
	}
	if len(interned.known) >= maxInterned || interned.known == nil {
		interned.known = map[any]any{}
	}
	interned.known[*field] = field
	return field
}

func shared[T ~string](text T) T { return *sharedField(&text) }

// sharedMap returns the one copy of a map, nil if it is empty: many objects have the same few labels. Nobody may change
// it.
func sharedMap(from map[string]string) map[string]string {
	if len(from) == 0 || len(from) > maxSharedMap {
		return sharedKeys(from)
	}
	var sum uint64
	for key, value := range from {
		sum += maphash.String(interned.seed, key) ^ 3*maphash.String(interned.seed, value)
	}
	own := sharedKeys(from)
	interned.Lock()
	defer interned.Unlock()
	one := &interned.maps[sum%uint64(len(interned.maps))]
	if !maps.Equal(*one, own) {
		*one = own
	}
	return *one
}

// sharedKeys returns the map with shared keys, nil if it is empty.
func sharedKeys(from map[string]string) map[string]string {
	if len(from) == 0 {
		return nil
	}
	out := make(map[string]string, len(from))
	for key, value := range from {
		out[shared(key)] = value
	}
	return out
}
