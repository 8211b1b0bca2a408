package k8s

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// watchOptions determine which objects a view shows, and which changes kick.
type watchOptions[T object] struct {
	client   rest.Interface
	resource string
	// namespace is the namespace of the objects; "" means all namespaces.
	namespace string
	// restrict restricts the objects; nil restricts nothing.
	restrict func(*metav1.ListOptions)
	// transform drops the fields of an object that the process does not read; nil means trim. It must not write to an
	// object that was trimmed.
	transform cache.TransformFunc
	// same reports whether a change kicks nothing; nil means that every change kicks.
	same func(before, after T) bool
	kick func()
}

// watch creates the view of one kind.
func watch[T object](k *Cluster, view **View[T], o watchOptions[T]) {
	if o.restrict == nil {
		o.restrict = func(*metav1.ListOptions) {}
	}

	if o.transform == nil {
		o.transform = trim
	}

	example := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(runtime.Object)
	lists := cache.NewFilteredListWatchFromClient(o.client, o.resource, o.namespace, o.restrict)
	informer := cache.NewSharedIndexInformer(lists, example, 0, cache.Indexers{})
	err := informer.SetTransform(keepUnchanged(informer.GetStore(), o.transform))
	utilruntime.Must(err) // it fails only for a running informer

	*view = newView(informer, func(before, after T) {
		if o.same == nil || !o.same(before, after) {
			o.kick()
		}
	})
	(*view).viewSource = viewSource{
		client:    o.client,
		resource:  o.resource,
		example:   example,
		transform: o.transform,
		attempts:  k.attempts,
	}
	k.views = append(k.views, *view)
}

// keepUnchanged returns a transform that returns the object of the store if the new version has the same content. So
// heartbeats of a thousand nodes change no list, and objects that are listed again take no memory.
func keepUnchanged(store cache.Store, transform cache.TransformFunc) cache.TransformFunc {
	return func(o any) (any, error) {
		out, err := transform(o)
		if err != nil {
			return out, err
		}

		have, exists, err := store.Get(out)
		if err != nil || !exists {
			return out, nil
		}
		if sameExceptVersion(have, out) {
			return have, nil
		}

		return out, nil
	}
}

// sameExceptVersion reports whether two objects differ in resourceVersion only. It reports false for objects that are
// written by the version that was read.
func sameExceptVersion(have, out any) bool {
	switch b := out.(type) {
	case *corev1.Node:
		a, ok := have.(*corev1.Node)
		return ok && equalExceptVersion(a, b)
	case *corev1.Pod:
		a, ok := have.(*corev1.Pod)
		return ok && equalExceptVersion(a, b)
	case *discoveryv1.EndpointSlice:
		a, ok := have.(*discoveryv1.EndpointSlice)
		return ok && equalExceptVersion(a, b)
	case *corev1.Service:
		a, ok := have.(*corev1.Service)
		return ok && reflect.DeepEqual(a, b)
	}

	return false
}

// equalExceptVersion compares all but the resourceVersion.
func equalExceptVersion[T any, P interface {
	*T
	metav1.Object
}](a, b P) bool {
	updated := P(new(*a))
	updated.SetResourceVersion(b.GetResourceVersion())
	return reflect.DeepEqual(updated, b)
}
