package k8s

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// watch creates the view of one kind. A change kicks unless same reports both versions as equal.
func watch[T object](k *Cluster, view **View[T], client rest.Interface, resource, namespace string, options func(*metav1.ListOptions),
	same func(old, new T) bool, kick func()) error {
	if options == nil {
		options = func(*metav1.ListOptions) {}
	}
	source := cache.NewFilteredListWatchFromClient(client, resource, namespace, options)
	example := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(runtime.Object)
	informer := cache.NewSharedIndexInformer(source, example, 0, cache.Indexers{})
	if err := informer.SetTransform(trim); err != nil {
		return fmt.Errorf("watch %s: %w", resource, err)
	}
	v, err := newView(informer, func(old, new T) {
		if same == nil || !same(old, new) {
			kick()
		}
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", resource, err)
	}
	*view = v
	k.views = append(k.views, v)
	return nil
}

// trim drops fields that Holdfast does not read: a third of an average object, and most of a Node.
func trim(o any) (any, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return o, nil // a tombstone
	}
	m.SetManagedFields(nil)
	switch o := o.(type) {
	case *corev1.Node:
		o.Status.Images = nil
		maps.DeleteFunc(o.Annotations, func(name, _ string) bool { return name != v1beta1.AnnotationReadyWithoutSessions })
		o.Status.Conditions = slices.DeleteFunc(o.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type != corev1.NodeNetworkUnavailable && c.Type != corev1.NodeReady
		})
		for i := range o.Status.Conditions {
			o.Status.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
	case *corev1.Secret:
		o.Annotations = nil // kubectl apply keeps a copy of the data there
		maps.DeleteFunc(o.Data, func(entry string, _ []byte) bool { return entry != corev1.BasicAuthPasswordKey })
	case *corev1.Pod:
		o.Spec = corev1.PodSpec{NodeName: o.Spec.NodeName}
	case *discoveryv1.EndpointSlice:
		for i, e := range o.Endpoints {
			o.Endpoints[i] = discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions, NodeName: e.NodeName, TargetRef: e.TargetRef}
		}
	}
	return o, nil
}
