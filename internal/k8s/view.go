package k8s

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
	// listed is the version of the last list past the watch, and existed has the objects that it returned. What
	// the watch shows of other objects of that time is hidden: they were gone.
	listed  uint64
	existed map[types.UID]bool
}

// written is an object as a write or a list past the watch returned it. Gone: the write removed it.
type written[T object] struct {
	object T
	at     time.Time
	gone   bool
}

// orphanAge is how long we keep a write of an object that the watch does not show though it has come to that
// version: the informer may still have to store what the watch delivered. Then the object's deletion overtook the
// response to the write.
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
		w, ours := v.own[key(t)]
		switch {
		case v.ghost(t):
		case !ours:
			out = append(out, t)
		case !newer(w.object, t):
			delete(v.own, key(t))
			out = append(out, t)
		default:
			seen++
			if !w.gone {
				out = append(out, w.object)
			}
		}
	}
	if seen < len(v.own) {
		out = v.appendUnseen(out)
	}
	return out
}

// ghost reports whether an object that the watch shows was gone when we listed all objects past the watch.
func (v *View[T]) ghost(t T) bool {
	if v.existed == nil || v.existed[t.GetUID()] {
		return false
	}
	version, err := strconv.ParseUint(t.GetResourceVersion(), 10, 64)
	return err == nil && version <= v.listed
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

// appendUnseen adds objects that a write or a list past the watch returned and the watch does not show yet.
func (v *View[T]) appendUnseen(out []T) []T {
	shown, err := strconv.ParseUint(v.informer.LastSyncResourceVersion(), 10, 64)
	for k, w := range v.own {
		if item, found, _ := v.informer.GetStore().GetByKey(storeKey(w.object)); found && !v.ghost(item.(T)) {
			continue
		}
		// A watch that hangs shows nothing for any time. Only one that is past the object shows that it is gone.
		version, err2 := strconv.ParseUint(w.object.GetResourceVersion(), 10, 64)
		past := err != nil || err2 != nil || version <= shown
		if v.ghost(w.object) || past && time.Since(w.at) > orphanAge {
			delete(v.own, k)
			continue
		}
		if !w.gone {
			out = append(out, w.object)
		}
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
// still returns the object, which is then gone, though the watch may still show how it once was.
func (v *View[T]) wrote(t T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.changes.Add(1)
	if before, ok := v.own[key(t)]; ok && !newer(t, before.object) {
		return
	}
	v.own[key(t)] = written[T]{t, time.Now(), t.GetDeletionTimestamp() != nil && len(t.GetFinalizers()) == 0}
}

// refreshed records a list of all objects, past the watch, of this version.
func (v *View[T]) refreshed(all []T, version string) {
	for _, t := range all {
		v.wrote(t)
	}
	listed, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.changes.Add(1)
	v.listed, v.existed = listed, make(map[types.UID]bool, len(all))
	for _, t := range all {
		v.existed[t.GetUID()] = true
	}
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
