package k8s

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

func TestViewOverlaysOwnWrites(t *testing.T) {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Service{}, 0, cache.Indexers{})
	v, err := newView(informer, func(_, _ *corev1.Service) {})
	if err != nil {
		t.Fatal(err)
	}
	service := func(version string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", ResourceVersion: version}}
	}
	watched := func(version string) {
		if err := informer.GetStore().Update(service(version)); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when, version string) {
		t.Helper()
		list := v.List()
		if version == "" && len(list) == 0 {
			return
		}
		if len(list) != 1 || list[0].ResourceVersion != version {
			t.Fatalf("%s: %v, want one Service of version %q", when, list, version)
		}
	}
	watched("9")
	expect("as watched", "9")
	v.wrote(service("10"))
	expect("our write, not watched yet", "10")
	watched("9")
	expect("the watch repeats the old", "10")
	watched("11")
	expect("the watch overtakes our write", "11")
	v.wrote(service("10"))
	expect("a late answer does not bring the old back", "11")

	if err := informer.GetStore().Delete(service("11")); err != nil {
		t.Fatal(err)
	}
	v.forget(service("11"))
	expect("deleted", "")
	v.wrote(service("12"))
	expect("known from a list before the watch", "12")
	v.own["ns/web"] = written[*corev1.Service]{service("12"), time.Now().Add(-2 * orphanAge)}
	expect("a write that the watch never shows is of a deleted object", "")

	v.wrote(service("13"))
	last := service("14")
	last.DeletionTimestamp = new(metav1.Now())
	v.wrote(last)
	if list := v.List(); len(list) > 0 {
		t.Errorf("an object whose last finalizer we took is still there: %v", list)
	}
}

// TestViewForgets: the deletion of an object takes our writes of that object, not those of a later one of its name.
func TestViewForgets(t *testing.T) {
	service := func(uid types.UID, version string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: uid, ResourceVersion: version}}
	}
	for _, tt := range []struct {
		name        string
		wrote, gone *corev1.Service
		kept        int
	}{
		{"the object itself", service("a", "10"), service("a", "11"), 0},
		{"the object itself, of which the watch missed the end", service("a", "10"), service("a", "9"), 0},
		{"an earlier object", service("b", "10"), service("a", "9"), 1},
		{"a later object", service("a", "10"), service("b", "11"), 0},
		{"versions that are no numbers", service("b", "x"), service("a", "y"), 0},
	} {
		informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Service{}, 0, cache.Indexers{})
		v, err := newView(informer, func(_, _ *corev1.Service) {})
		if err != nil {
			t.Fatal(err)
		}
		v.wrote(tt.wrote)
		v.forget(tt.gone)
		if got := v.List(); len(got) != tt.kept {
			t.Errorf("%s: %v are left, want %d", tt.name, got, tt.kept)
		}
	}
}
