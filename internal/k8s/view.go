package k8s

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// object is implemented by every kind we watch.
type object interface {
	metav1.Object
	comparable
}

// View is all objects of one kind, as the watch shows them, overlaid with our own
// writes until the watch shows those too. So a stale cache never makes us
// decide the same thing twice.
type View[T object] struct {
	informer cache.SharedIndexInformer
	changes  atomic.Uint64

	mu  sync.Mutex
	own map[string]written[T]
}

type written[T object] struct {
	object T
	at     time.Time
}

// orphanAge is how long we keep a write of an object that the watch does not
// show: long enough for the watch to catch up, short enough not to keep an object
// whose deletion overtook the response to the write.
const orphanAge = 10 * time.Second

// newView calls changed for each change, with the old and the new version; the zero T
// is a missing version.
func newView[T object](informer cache.SharedIndexInformer, changed func(old, new T)) (*View[T], error) {
	v := &View[T]{informer: informer, own: map[string]written[T]{}}
	notify := changed
	changed = func(old, new T) {
		v.changes.Add(1)
		notify(old, new)
	}
	var none T
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { changed(none, o.(T)) },
		UpdateFunc: func(old, new any) { changed(old.(T), new.(T)) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			t, ok := o.(T)
			if ok {
				v.forget(t)
			}
			changed(t, none)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	return v, nil
}

func key(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// List returns the objects in no particular order. They must not be changed.
func (v *View[T]) List() []T {
	items := v.informer.GetStore().List()
	out := make([]T, 0, len(items))
	v.mu.Lock()
	defer v.mu.Unlock()
	seen := 0
	for _, item := range items {
		t := item.(T)
		if len(v.own) == 0 {
			out = append(out, t)
			continue
		}
		if w, ok := v.own[key(t)]; ok {
			seen++
			if newer(w.object, t) {
				t = w.object
			} else {
				delete(v.own, key(t))
				seen--
			}
		}
		out = append(out, t)
	}
	if seen < len(v.own) {
		out = v.appendUnseen(out)
	}
	return out
}

// version is another number whenever List may return something else than before. While the watch does not show all our
// writes, that is always.
func (v *View[T]) version() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.own) > 0 {
		v.changes.Add(1)
	}
	return v.changes.Load()
}

// appendUnseen adds objects that a consistent list returned and the watch does not show yet.
func (v *View[T]) appendUnseen(out []T) []T {
	for k, w := range v.own {
		if _, found, _ := v.informer.GetStore().GetByKey(storeKey(w.object)); found {
			continue
		}
		if time.Since(w.at) > orphanAge {
			delete(v.own, k)
			continue
		}
		out = append(out, w.object)
	}
	return out
}

func storeKey(o metav1.Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return key(o)
}

// wrote records an object as the API server returned it from a write or a consistent
// list. The write that removes the last finalizer of an object that is being deleted
// still returns the object, which is then gone.
func (v *View[T]) wrote(t T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.changes.Add(1)
	if t.GetDeletionTimestamp() != nil && len(t.GetFinalizers()) == 0 {
		delete(v.own, key(t))
		return
	}
	if before, ok := v.own[key(t)]; ok && !newer(t, before.object) {
		return
	}
	v.own[key(t)] = written[T]{t, time.Now()}
}

// forget drops our write of an object that is gone. A write of a later object of the same name stays: the
// watch shows the deletion of the earlier one late.
func (v *View[T]) forget(gone T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w, stands := v.own[key(gone)]
	if stands && (w.object.GetUID() == gone.GetUID() || !newer(w.object, gone)) {
		delete(v.own, key(gone))
	}
}

// newer compares resource versions as numbers, which Kubernetes defines since 1.35
// and which etcd-backed servers have always used. This orders different objects of the
// same name too. If a version is not a number, the watch wins.
func newer(a, b metav1.Object) bool {
	x, errX := strconv.ParseUint(a.GetResourceVersion(), 10, 64)
	y, errY := strconv.ParseUint(b.GetResourceVersion(), 10, 64)
	return errX == nil && errY == nil && x > y
}

// waitForSync blocks until the view shows everything that existed when it
// started; false if ctx ends first.
func (v *View[T]) waitForSync(ctx context.Context) bool {
	return cache.WaitForCacheSync(ctx.Done(), v.informer.HasSynced)
}

func (v *View[T]) run(ctx context.Context) { v.informer.Run(ctx.Done()) }
