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

// View is all objects of one kind, as the watch shows them, overlaid with our own
// writes until the watch shows those too. So a stale cache never makes us
// decide the same thing twice.
type View[T object] struct {
	source
	informer cache.SharedIndexInformer
	changes  atomic.Uint64
	// told: all that existed at the start was.
	told func() bool

	mu sync.Mutex
	// items are the objects that the watch shows; stale are the keys of those that changed since, nil if all are to be
	// read.
	items lb.Map[lb.Key, T]
	stale map[lb.Key]bool
	// list is what List returned last, which was made of listOf.
	list   []T
	listOf lb.Map[lb.Key, T]
	own    map[lb.Key]*written[T]
	// open are the writes that may have landed without an answer, by the keys of their objects.
	unanswered map[lb.Key]unansweredWrite[T]
	// listed is the version of the last list past the watch, and existed has the objects that it returned. What
	// the watch shows of other objects of that time is hidden: they were gone. listedPast is as in written.
	listed     uint64
	listedPast time.Time
	existed    map[types.UID]bool
	// shown is the version that the watch had come to when last seen.
	shown uint64
}

// source is where the objects of a view are, and how they are read and written past the watch.
type source struct {
	client   rest.Interface
	resource string
	// example is an empty object of the kind, and transform makes of one what the view shows.
	example   runtime.Object
	transform cache.TransformFunc
	attempts  attempts
}

// at completes a request about objects in the namespace of this one.
func (s source) at(r *rest.Request, o metav1.Object) *rest.Request {
	return r.NamespaceIfScoped(o.GetNamespace(), o.GetNamespace() != "").Resource(s.resource)
}

// written is an object as a write or a list past the watch returned it. Gone: the write removed it.
type written[T object] struct {
	object T
	gone   bool
	// past is since when the watch is known to be past that version; zero if it is not.
	past time.Time
}

// orphanAge is how long we keep a write that the watch does not show though it has come to that version: the informer
// may still have to store what the watch delivered. Then the object's deletion overtook the response to the write, or
// etcd was restored from a backup that does not have it.
const orphanAge = 10 * time.Second

// newView calls changed for each change, with the old and the new version; the zero T
// is a missing version.
func newView[T object](informer cache.SharedIndexInformer, changed func(old, new T)) *View[T] {
	v := &View[T]{informer: informer, own: map[lb.Key]*written[T]{}, unanswered: map[lb.Key]unansweredWrite[T]{}}
	notify := changed
	changed = func(old, new T) {
		v.changes.Add(1)
		notify(old, new)
	}
	var none T
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { v.touch(o.(T)); changed(none, o.(T)) },
		UpdateFunc: func(old, new any) {
			if old != new { // client-go reports a version in whose place the store keeps what it has
				v.touch(new.(T))
				changed(old.(T), new.(T))
			}
		},
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			t, ok := o.(T)
			if ok {
				v.touch(t)
				v.forget(t)
			}
			changed(t, none)
		},
	})
	utilruntime.Must(err) // it was not stopped
	v.told = registration.HasSynced
	return v
}

// touch notes that the watch shows another version of an object. What is noted must not grow where the list is never
// asked for.
func (v *View[T]) touch(o T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.stale != nil {
		v.stale[config.KeyOf(o)] = true
	}
	if len(v.stale) > maxStale {
		v.items, v.stale = lb.Map[lb.Key, T]{}, nil
	}
}

// maxStale is how many changed objects are noted: to read all costs little more then.
const maxStale = 1024

// watched returns the objects that the watch shows. Only what changed is read again.
func (v *View[T]) watched() lb.Map[lb.Key, T] {
	if v.stale == nil {
		v.stale = map[lb.Key]bool{}
		for _, o := range v.informer.GetStore().List() {
			v.stale[config.KeyOf(o.(T))] = true
		}
	}
	if len(v.stale) > 0 {
		v.items = v.items.With(maps.Keys(v.stale), func(k lb.Key) (t T, there bool) {
			o, there, _ := v.informer.GetStore().GetByKey(cache.NewObjectName(k.Namespace, k.Name).String())
			if there {
				t = o.(T)
			}
			return t, there
		})
		v.stale = map[lb.Key]bool{}
	}
	return v.items
}

// List returns the objects ordered by key: the same list as before while nothing changed. Neither they nor the list may
// be changed. A nil view has none.
func (v *View[T]) List() []T {
	if v == nil {
		return nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if m := v.objects(); v.list == nil || !m.Same(v.listOf) {
		v.list, v.listOf = make([]T, 0, m.Len()), m
		for _, t := range m.All() {
			v.list = append(v.list, t)
		}
	}
	return v.list
}

// Map returns the objects by key. A nil view has none.
func (v *View[T]) Map() (none lb.Map[lb.Key, T]) {
	if v == nil {
		return none
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.objects()
}

// objects returns the objects. While the watch does not show our own writes it costs what these are.
func (v *View[T]) objects() lb.Map[lb.Key, T] {
	now, shown := time.Now(), v.watched()
	v.look(now)
	if len(v.own)+len(v.unanswered) == 0 && v.existed == nil {
		return shown // as mostly
	}
	if v.existed != nil {
		var ghosts []lb.Key
		for k, t := range shown.All() {
			if v.ghost(t) {
				ghosts = append(ghosts, k)
			}
		}
		shown = shown.Without(ghosts...)
	}
	for k, w := range v.own {
		if t, found := shown.Get(k); found &&
			!newer(w.object, t) ||
			v.ghost(w.object) ||
			v.orphaned(now, versionOf(w.object), &w.past) {
			delete(v.own, k)
		} else {
			v.settle(w.object)
		}
	}
	out := shown.With(maps.Keys(v.own), func(k lb.Key) (T, bool) { return v.own[k].object, !v.own[k].gone })
	for k := range v.unanswered {
		if t, there := out.Get(k); there && shown.Has(k) {
			v.settle(t)
		}
	}
	return out
}

// look takes notice of how far the watch has come. A watch falls back only when etcd was restored from a backup: what
// was written or listed beyond that point is no more.
func (v *View[T]) look(now time.Time) {
	shown := number(v.informer.LastSyncResourceVersion())
	if shown == 0 {
		return
	}
	if shown < v.shown {
		before := v.shown
		maps.DeleteFunc(v.own, func(_ lb.Key, w *written[T]) bool { return versionOf(w.object) > before })
		v.listed, v.existed = 0, nil
	}
	v.shown = shown
	if v.existed != nil && v.orphaned(now, v.listed, &v.listedPast) {
		v.existed = nil
	}
}

// orphaned reports whether the watch has been past a version for long enough, and notes since when it is.
func (v *View[T]) orphaned(now time.Time, version uint64, past *time.Time) bool {
	switch {
	case version > v.shown:
		*past = time.Time{} // a watch that hangs shows nothing for any time
	case past.IsZero():
		*past = now
	}
	return !past.IsZero() && now.Sub(*past) > orphanAge
}

// ghost reports whether an object that the watch shows was gone when we listed all objects past the watch.
func (v *View[T]) ghost(t T) bool {
	return v.existed != nil && !v.existed[t.GetUID()] && versionOf(t) <= v.listed
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

// wrote records an object as the API server returned it from a write or a consistent
// list. The write that removes the last finalizer of an object that is being deleted
// still returns the object, which is then gone, though the watch may still show how it once was.
func (v *View[T]) wrote(t T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.changes.Add(1)
	if before, ok := v.own[config.KeyOf(t)]; ok && !newer(t, before.object) {
		return
	}
	v.own[config.KeyOf(t)] = &written[T]{object: t, gone: gone(t)}
}

// get reads an object past the watch.
func (v *View[T]) get(ctx context.Context, o T) (none T, err error) {
	read := v.example.DeepCopyObject()
	if err := v.at(v.client.Get(), o).Name(o.GetName()).Do(ctx).Into(read); err != nil {
		return none, fmt.Errorf("read %s %s: %w", v.resource, config.KeyOf(o), err)
	}
	shown, err := v.transform(read)
	return shown.(T), err
}

// refresh lists all objects past the watch.
func (v *View[T]) refresh(ctx context.Context) error {
	list, err := v.client.Get().Resource(v.resource).Do(ctx).Get()
	var all []T
	if err == nil {
		err = meta.EachListItem(list, func(o runtime.Object) error {
			shown, err := v.transform(o)
			all = append(all, shown.(T))
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", v.resource, err)
	}
	v.refreshed(all, list.(metav1.ListInterface).GetResourceVersion())
	return nil
}

// refreshed records a list of all objects, past the watch, of this version.
func (v *View[T]) refreshed(all []T, version string) {
	for _, t := range all {
		v.wrote(t)
	}
	listed := number(version)
	if listed == 0 {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.changes.Add(1)
	v.listed, v.listedPast, v.existed = listed, time.Time{}, make(map[types.UID]bool, len(all))
	for _, t := range all {
		v.existed[t.GetUID()] = true
	}
}

// forget drops our write of an object that is gone. A write of a later object of the same name stays: the
// watch shows the deletion of the earlier one late.
func (v *View[T]) forget(gone T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w, stands := v.own[config.KeyOf(gone)]
	if stands && (w.object.GetUID() == gone.GetUID() || !newer(w.object, gone)) {
		delete(v.own, config.KeyOf(gone))
	}
	if w, stands := v.unanswered[config.KeyOf(gone)]; stands && w.object.GetUID() == gone.GetUID() {
		delete(v.unanswered, config.KeyOf(gone))
	}
}

// newer compares resource versions as numbers, which Kubernetes defines since 1.35
// and which etcd-backed servers have always used. This orders different objects of the
// same name too. If a version is not a number, the watch wins.
func newer(a, b metav1.Object) bool { return versionOf(b) > 0 && versionOf(a) > versionOf(b) }

func versionOf(o metav1.Object) uint64 { return number(o.GetResourceVersion()) }

// number returns a resource version, 0 if it is not a number.
func number(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// gone reports whether a write that returned the object removed it: it took the last finalizer.
func gone(o metav1.Object) bool {
	return o.GetDeletionTimestamp() != nil && len(o.GetFinalizers()) == 0
}

// waitForSync blocks until the view shows everything that existed when it
// started; false if ctx ends first.
func (v *View[T]) waitForSync(ctx context.Context) bool {
	return cache.WaitForCacheSync(ctx.Done(), v.told)
}

func (v *View[T]) run(ctx context.Context) { v.informer.Run(ctx.Done()) }
