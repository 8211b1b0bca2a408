package k8s

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
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

// watchAs creates the view of the kind of example. The view holds the results of transform.
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
	utilruntime.Must(informer.SetTransform(keepUnchanged(informer.GetStore(), transform))) // it does not run yet
	*view = newView(informer, func(old, new T) {
		if same == nil || !same(old, new) {
			kick()
		}
	})
	(*view).source = source{client, resource, example, transform, k.attempts}
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

		p, isPacked := out.(interface{ share(have any) })
		if isPacked {
			p.share(have)
		}
		return out, nil
	}
}

// sameExceptVersion reports whether two objects differ in their resourceVersion only. It reports false for objects that
// are written by the version that was read.
func sameExceptVersion(have, out any) bool {
	switch b := out.(type) {
	case *corev1.Node:
		a, ok := have.(*corev1.Node)
		if !ok {
			return false
		}
		updated := *a
		updated.ResourceVersion = b.ResourceVersion
		return reflect.DeepEqual(&updated, b)
	case *corev1.Pod:
		a, ok := have.(*corev1.Pod)
		if !ok {
			return false
		}
		updated := *a
		updated.ResourceVersion = b.ResourceVersion
		return reflect.DeepEqual(&updated, b)
	case *packedSlice:
		a, ok := have.(*packedSlice)
		return ok && a.uid == b.uid && a.body == b.body
	case *packedService:
		a, ok := have.(*packedService)
		return ok && a.uid == b.uid && a.version == b.version && a.body == b.body
	}
	return false
}
