package k8s

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// object is implemented by every kind we watch.
type object interface {
	metav1.Object
	comparable
}

// View has all objects of one kind, as the watch shows them, overlaid with our own writes until the watch shows those
// too. So a stale cache never makes us decide the same thing twice.
type View[T object] struct {
	viewSource
	informer cache.SharedIndexInformer
	changes  atomic.Uint64
	// hasSynced reports whether the handlers have got all objects that existed at the start.
	hasSynced func() bool

	mu sync.Mutex
	// items are the objects that the watch shows, except for changes of staleKeys.
	items lb.Map[lb.Key, T]
	// staleKeys are the keys of objects that changed since items was read; nil if all must be read.
	staleKeys map[lb.Key]bool
	// list is the last result of List, which was made from listItems.
	list      []T
	listItems lb.Map[lb.Key, T]

	// ownWrites are our writes that the watch does not show yet.
	ownWrites map[lb.Key]*ownWrite[T]
	// unanswered are the writes without an answer that may have landed.
	unanswered map[lb.Key]unansweredWrite[T]

	// listedVersion is the version of the last list past the watch.
	listedVersion uint64
	// listedPastSince is the time since when the watch is known to be past listedVersion; zero if it is not.
	listedPastSince time.Time
	// listedUIDs are the objects in that list. Other objects of that time that the watch shows are hidden: they were
	// deleted already.
	listedUIDs map[types.UID]bool
	// shownVersion is the last version that the watch had reached.
	shownVersion uint64
}

// viewSource is the way to read and write the objects of a view past the watch.
type viewSource struct {
	client   rest.Interface
	resource string
	// example is an empty object of the kind.
	example runtime.Object
	// transform trims an object.
	transform cache.TransformFunc
	attempts  attempts
}

// at completes a request about an object, or others in its namespace.
func (s viewSource) at(r *rest.Request, o metav1.Object) *rest.Request {
	namespace := o.GetNamespace()
	return r.NamespaceIfScoped(namespace, namespace != "").Resource(s.resource)
}

// ownWrite is an object as a write, or a list past the watch, returned it.
type ownWrite[T object] struct {
	object T
	// isRemoved reports whether the write removed the object.
	isRemoved bool
	// pastSince is the time since when the watch is known to be past that version; zero if it is not.
	pastSince time.Time
}

// orphanAge is the time for which a write is kept that the watch has passed without showing it. The informer may still
// have to store what the watch delivered. After that time, the object's deletion overtook the response to the write, or
// etcd was restored from a backup without the write.
const orphanAge = 10 * time.Second

// maxStaleKeys bounds the stale keys: beyond it, reading all objects costs little more.
const maxStaleKeys = 1024

// newView returns a view that calls changed for each change, with the old and the new version. The zero T stands for a
// missing version.
func newView[T object](informer cache.SharedIndexInformer, changed func(before, after T)) *View[T] {
	v := &View[T]{
		informer:   informer,
		ownWrites:  map[lb.Key]*ownWrite[T]{},
		unanswered: map[lb.Key]unansweredWrite[T]{},
	}
	notify := func(before, after T) {
		v.changes.Add(1)
		changed(before, after)
	}

	var none T
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			t := o.(T)
			v.markStale(t)
			notify(none, t)
		},
		UpdateFunc: func(before, after any) {
			if before == after { // the store kept the object in place of an equal version
				return
			}

			t := after.(T)
			v.markStale(t)
			notify(before.(T), t)
		},
		DeleteFunc: func(o any) {
			if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = tombstone.Obj
			}

			t, ok := o.(T)
			if ok {
				v.markStale(t)
				v.dropWrites(t)
			}

			notify(t, none)
		},
	})
	utilruntime.Must(err) // it fails only for a stopped informer
	v.hasSynced = registration.HasSynced
	return v
}

// markStale records that the watch shows another version of an object. The record is bounded, because the objects of
// some views are never read.
func (v *View[T]) markStale(o T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.staleKeys != nil {
		v.staleKeys[config.KeyOf(o)] = true
	}

	if len(v.staleKeys) > maxStaleKeys {
		v.items = lb.Map[lb.Key, T]{}
		v.staleKeys = nil
	}
}

// watchedObjects returns the objects that the watch shows. It reads only objects that changed.
func (v *View[T]) watchedObjects() lb.Map[lb.Key, T] {
	store := v.informer.GetStore()
	if v.staleKeys == nil {
		v.staleKeys = map[lb.Key]bool{}
		for _, o := range store.List() {
			key := config.KeyOf(o.(T))
			v.staleKeys[key] = true
		}
	}
	if len(v.staleKeys) == 0 {
		return v.items
	}

	read := func(k lb.Key) (t T, exists bool) {
		name := cache.NewObjectName(k.Namespace, k.Name).String()
		o, exists, _ := store.GetByKey(name)
		if exists {
			t = o.(T)
		}

		return t, exists
	}
	v.items = v.items.With(maps.Keys(v.staleKeys), read)
	v.staleKeys = map[lb.Key]bool{}
	return v.items
}

// List returns the objects ordered by key. It returns the same list as before if nothing changed. Neither the objects
// nor the list may be changed. A nil view has no objects.
func (v *View[T]) List() []T {
	if v == nil {
		return nil
	}

	v.mu.Lock()
	defer v.mu.Unlock()
	m := v.objects()
	if v.list == nil || !m.Same(v.listItems) {
		v.list = make([]T, 0, m.Len())
		v.listItems = m
		for _, t := range m.All() {
			v.list = append(v.list, t)
		}
	}

	return v.list
}

// Map returns the objects by key. A nil view has no objects.
func (v *View[T]) Map() (none lb.Map[lb.Key, T]) {
	if v == nil {
		return none
	}

	v.mu.Lock()
	defer v.mu.Unlock()
	return v.objects()
}

// objects returns the objects. Its cost depends on the number of our writes that the watch does not show yet.
func (v *View[T]) objects() lb.Map[lb.Key, T] {
	at := time.Now()
	shown := v.watchedObjects()
	v.observeVersion(at)

	hasWrites := len(v.ownWrites)+len(v.unanswered) > 0
	if !hasWrites && v.listedUIDs == nil {
		return shown
	}

	shown = v.withoutHidden(shown)
	v.pruneWrites(at, shown)
	out := shown.With(maps.Keys(v.ownWrites), func(k lb.Key) (T, bool) {
		w := v.ownWrites[k]
		return w.object, !w.isRemoved
	})
	for k := range v.unanswered {
		t, ok := out.Get(k)
		if ok && shown.Has(k) {
			v.settle(t)
		}
	}

	return out
}

// withoutHidden returns the objects that are not hidden.
func (v *View[T]) withoutHidden(shown lb.Map[lb.Key, T]) lb.Map[lb.Key, T] {
	if v.listedUIDs == nil {
		return shown
	}

	var hidden []lb.Key
	for k, t := range shown.All() {
		if v.isHidden(t) {
			hidden = append(hidden, k)
		}
	}

	return shown.Without(hidden...)
}

// pruneWrites drops our writes that the watch shows, and writes that it will never show.
func (v *View[T]) pruneWrites(at time.Time, shown lb.Map[lb.Key, T]) {
	for k, w := range v.ownWrites {
		t, ok := shown.Get(k)
		isShown := ok && !isNewer(w.object, t)
		if isShown || v.isHidden(w.object) || v.isOrphaned(at, versionOf(w.object), &w.pastSince) {
			delete(v.ownWrites, k)
		} else {
			v.settle(w.object)
		}
	}
}

// observeVersion reads the version that the watch has reached. A watch falls back only if etcd was restored from a
// backup: writes and lists beyond that point no longer exist.
func (v *View[T]) observeVersion(at time.Time) {
	shown := versionNumber(v.informer.LastSyncResourceVersion())
	if shown == 0 {
		return
	}

	before := v.shownVersion
	if shown < before {
		maps.DeleteFunc(v.ownWrites, func(_ lb.Key, w *ownWrite[T]) bool {
			return versionOf(w.object) > before
		})
		v.listedVersion = 0
		v.listedUIDs = nil
	}

	v.shownVersion = shown
	isListPassed := v.listedUIDs != nil && v.isOrphaned(at, v.listedVersion, &v.listedPastSince)
	if isListPassed {
		v.listedUIDs = nil
	}
}

// isOrphaned reports whether the watch has been past a version for orphanAge. It updates since when it is.
func (v *View[T]) isOrphaned(at time.Time, version uint64, pastSince *time.Time) bool {
	switch {
	case version > v.shownVersion:
		*pastSince = time.Time{} // a watch that hangs may show nothing for any time
	case pastSince.IsZero():
		*pastSince = at
	}

	return !pastSince.IsZero() && at.Sub(*pastSince) > orphanAge
}

// isHidden reports whether an object that the watch shows was already deleted in the last list past the watch.
func (v *View[T]) isHidden(t T) bool {
	return v.listedUIDs != nil &&
		!v.listedUIDs[t.GetUID()] &&
		versionOf(t) <= v.listedVersion
}

// version returns another number whenever List may return something else than before. While the watch does not show all
// our writes, every call returns another number.
func (v *View[T]) version() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.ownWrites) > 0 {
		v.changes.Add(1)
	}

	return v.changes.Load()
}

// recordWrite records an object as the API server returned it from a write or a consistent list. The write that removes
// the last finalizer of a deleted object still returns the object. The object does not exist then, though the watch may
// still show it.
func (v *View[T]) recordWrite(t T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.changes.Add(1)

	key := config.KeyOf(t)
	before, ok := v.ownWrites[key]
	if ok && !isNewer(t, before.object) {
		return
	}

	v.ownWrites[key] = &ownWrite[T]{object: t, isRemoved: isRemoved(t)}
}

// get reads an object past the watch.
func (v *View[T]) get(ctx context.Context, o T) (none T, err error) {
	read := v.example.DeepCopyObject()
	err = v.at(v.client.Get(), o).
		Name(o.GetName()).
		Do(ctx).
		Into(read)
	if err != nil {
		return none, fmt.Errorf("read %s %s: %w", v.resource, config.KeyOf(o), err)
	}

	shown, err := v.transform(read)
	return shown.(T), err
}

// refresh lists all objects past the watch.
func (v *View[T]) refresh(ctx context.Context) error {
	list, err := v.client.Get().
		Resource(v.resource).
		Do(ctx).
		Get()
	if err != nil {
		return fmt.Errorf("list %s: %w", v.resource, err)
	}

	var all []T
	err = meta.EachListItem(list, func(o runtime.Object) error {
		shown, err := v.transform(o)
		if err != nil {
			return err
		}
		all = append(all, shown.(T))
		return nil
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", v.resource, err)
	}

	version := list.(metav1.ListInterface).GetResourceVersion()
	v.recordList(all, version)
	return nil
}

// recordList records a list of all objects past the watch, which has this version.
func (v *View[T]) recordList(all []T, version string) {
	for _, t := range all {
		v.recordWrite(t)
	}

	listed := versionNumber(version)
	if listed == 0 {
		return
	}

	v.mu.Lock()
	defer v.mu.Unlock()
	v.changes.Add(1)
	v.listedVersion = listed
	v.listedPastSince = time.Time{}
	v.listedUIDs = make(map[types.UID]bool, len(all))

	for _, t := range all {
		v.listedUIDs[t.GetUID()] = true
	}
}

// dropWrites drops our writes of a deleted object. A write of a later object of the same name stays: the watch shows
// the deletion of the earlier one late.
func (v *View[T]) dropWrites(deleted T) {
	v.mu.Lock()
	defer v.mu.Unlock()

	key := config.KeyOf(deleted)
	isDeleted := func(o T) bool { return o.GetUID() == deleted.GetUID() }
	own, ok := v.ownWrites[key]
	if ok && (isDeleted(own.object) || !isNewer(own.object, deleted)) {
		delete(v.ownWrites, key)
	}

	write, ok := v.unanswered[key]
	if ok && isDeleted(write.object) {
		delete(v.unanswered, key)
	}
}

// isNewer compares resource versions as numbers, which Kubernetes defines since 1.35 and which servers with etcd have
// always used. Versions order different objects of the same name too. If a version is not a number, the watch wins.
func isNewer(a, b metav1.Object) bool {
	return versionOf(b) > 0 && versionOf(a) > versionOf(b)
}

// versionOf returns the resource version of an object as a number, or 0 if it is none.
func versionOf(o metav1.Object) uint64 { return versionNumber(o.GetResourceVersion()) }

// versionNumber returns a resource version as a number, or 0 if it is none.
func versionNumber(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// isRemoved reports whether a write that returned the object removed it, by removing the last finalizer.
func isRemoved(o metav1.Object) bool {
	return o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0
}

// waitForSync blocks until the view shows everything that existed when it started. It returns false if ctx ends first.
func (v *View[T]) waitForSync(ctx context.Context) bool {
	return cache.WaitForCacheSync(ctx.Done(), v.hasSynced)
}

// run watches until ctx is cancelled.
func (v *View[T]) run(ctx context.Context) {
	v.informer.Run(ctx.Done())
}
