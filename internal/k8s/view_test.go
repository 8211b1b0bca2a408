package k8s

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

// The version of a view changes with everything that its list may show, and with nothing else.
func TestViewVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		services := client.CoreV1().Services("ns")
		v := newView(informers.NewSharedInformerFactory(client, 0).Core().V1().Services().Informer(), func(_, _ *corev1.Service) {})
		go v.run(t.Context())
		synctest.Wait()
		last := v.version()
		expect := func(when string, change bool) {
			t.Helper()
			synctest.Wait()
			before := last
			if last = v.version(); (last != before) != change {
				t.Errorf("%s: %d, before %d", when, last, before)
			}
		}
		expect("nothing happened", false)
		watched := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", ResourceVersion: "1"}}
		if _, err := services.Create(t.Context(), watched, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("created", true)
		expect("nothing happened since", false)
		own := watched.DeepCopy()
		own.ResourceVersion = "2"
		v.wrote(own)
		expect("our write", true)
		v.List()
		expect("the watch does not show it yet", true)
		if _, err := services.Update(t.Context(), own, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("the watch shows it", true)
		v.List()
		expect("and nothing happened since", false)
		must(t, services.Delete(t.Context(), "web", metav1.DeleteOptions{}))
		expect("deleted", true)
	})
}

// A heartbeat of a node kicks nothing: a thousand nodes have one every 0.3 s.
func TestViewKeeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, kicks := fake.NewClientset(), 0
		informer := informers.NewSharedInformerFactory(client, 0).Core().V1().Nodes().Informer()
		must(t, informer.SetTransform(keeping(informer.GetStore(), trim)))
		v := newView(informer, func(_, _ *corev1.Node) { kicks++ })
		go v.run(t.Context())
		synctest.Wait()
		expect := func(when string, want int) {
			t.Helper()
			if synctest.Wait(); kicks != want || v.version() != uint64(want) {
				t.Errorf("%s: %d kicks, version %d, want %d", when, kicks, v.version(), want)
			}
		}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1"}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		_, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
		must(t, err)
		expect("created", 1)
		update := func(version string, at metav1.Time, ready corev1.ConditionStatus) {
			node = node.DeepCopy()
			node.ResourceVersion, node.Status.Conditions[0].LastHeartbeatTime, node.Status.Conditions[0].Status = version, at, ready
			_, err = client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
			must(t, err)
		}
		update("1", metav1.Time{}, corev1.ConditionTrue) // the fake client names the kind of what it created
		expect("updated", 2)
		update("2", metav1.Now(), corev1.ConditionTrue)
		expect("a heartbeat", 2)
		update("3", metav1.Now(), corev1.ConditionFalse)
		expect("not ready", 3)
	})
}

func TestViewOverlaysOwnWrites(t *testing.T) {
	informer := &lagging{SharedIndexInformer: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Service{}, 0, cache.Indexers{}), version: "12"}
	v := newView(informer, func(_, _ *corev1.Service) {})
	service := func(version string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", ResourceVersion: version}}
	}
	watched := func(version string) {
		must(t, informer.GetStore().Update(service(version)))
		v.touch(service(version))
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

	must(t, informer.GetStore().Delete(service("11")))
	v.touch(service("11"))
	v.forget(service("11"))
	expect("deleted", "")
	v.wrote(service("12"))
	expect("known from a list before the watch", "12")
	v.own[lb.Key{Namespace: "ns", Name: "web"}].past = time.Now().Add(-2 * orphanAge)
	expect("a write that the watch never shows is of a deleted object", "")

	v.wrote(service("13"))
	last := service("14")
	last.DeletionTimestamp = new(metav1.Now())
	v.wrote(last)
	if list := v.List(); len(list) > 0 {
		t.Errorf("an object whose last finalizer we took is still there: %v", list)
	}
}

// A view that is never listed, or seldom, notes no endless number of changed objects, and misses none.
func TestViewIsBounded(t *testing.T) {
	informer := &lagging{SharedIndexInformer: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Service{}, 0, cache.Indexers{}), version: "1"}
	v := newView(informer, func(_, _ *corev1.Service) {})
	named := func(i int) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("s%05d", i), ResourceVersion: "1"}}
	}
	for round, last := range []int{10, 3 * maxStale, 3*maxStale + 5} {
		for i := range last {
			must(t, informer.GetStore().Update(named(i)))
			v.touch(named(i))
		}
		must(t, informer.GetStore().Delete(named(round)))
		if v.touch(named(round)); len(v.stale) > maxStale {
			t.Errorf("round %d: %d changes are noted", round, len(v.stale))
		}
		if list := v.List(); len(list) != last-1 || !slices.IsSortedFunc(list, func(a, b *corev1.Service) int { return config.KeyOf(a).Compare(config.KeyOf(b)) }) {
			t.Errorf("round %d: %d objects are shown, not %d, or not in order", round, len(list), last-1)
		}
	}
}

// lagging is an informer whose watch has come to a version.
type lagging struct {
	cache.SharedIndexInformer
	version string
}

func (l *lagging) LastSyncResourceVersion() string { return l.version }

// TestViewGhosts: what the watch still shows of an object that is gone does not count, and an object that it does not
// show yet exists for as long as it lags.
func TestViewGhosts(t *testing.T) {
	informer := &lagging{SharedIndexInformer: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Service{}, 0, cache.Indexers{}), version: "9"}
	v := newView(informer, func(_, _ *corev1.Service) {})
	service := func(name, version string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: version}}
	}
	watched := func(s *corev1.Service) {
		must(t, informer.GetStore().Update(s))
		v.touch(s)
	}
	expect := func(when string, want ...string) {
		t.Helper()
		var got []string
		for _, s := range v.List() {
			got = append(got, s.Name+s.ResourceVersion)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	watched(service("a", "8"))
	last := service("a", "10")
	last.DeletionTimestamp = new(metav1.Now())
	v.wrote(last)
	expect("its last finalizer was taken, and the watch shows how it was before")
	watched(service("b", "9"))
	v.refreshed([]*corev1.Service{service("c", "11"), service("d", "12")}, "20")
	expect("the list does not have b", "c11", "d12")
	watched(service("e", "15"))
	watched(service("f", "21"))
	expect("e came and went before the list, f came after it", "c11", "d12", "f21")
	watched(service("d", "13"))
	expect("d was listed", "c11", "d13", "f21")
	v.own[lb.Key{Namespace: "ns", Name: "c"}].past = time.Now().Add(-2 * orphanAge)
	informer.version = "10"
	expect("the watch hangs", "c11", "d13", "f21")
	informer.version = "11"
	expect("the watch has just come to c, which the informer may still have to store", "c11", "d13", "f21")
	v.own[lb.Key{Namespace: "ns", Name: "c"}].past = time.Now().Add(-2 * orphanAge)
	expect("the watch is past c and does not show it", "d13", "f21")
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
		v := newView(informer, func(_, _ *corev1.Service) {})
		v.wrote(tt.wrote)
		v.forget(tt.gone)
		if got := v.List(); len(got) != tt.kept {
			t.Errorf("%s: %v are left, want %d", tt.name, got, tt.kept)
		}
	}
}

// TestViewRestored: when etcd is restored from a backup, what was written or listed after that is no more. The restored
// etcd counts on from the backup, or jumps far ahead.
func TestViewRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, jumps := range []bool{false, true} {
			informer := &lagging{SharedIndexInformer: cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Service{}, 0, cache.Indexers{}), version: "1000"}
			v := newView(informer, func(_, _ *corev1.Service) {})
			service := func(name, version string) *corev1.Service {
				return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: version}}
			}
			watched := func(s *corev1.Service) {
				must(t, informer.GetStore().Update(s))
				v.touch(s)
			}
			expect := func(when string, want ...string) {
				t.Helper()
				var got []string
				for _, s := range v.List() {
					got = append(got, s.Name+s.ResourceVersion)
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s, versions jump: %t: %v, want %v", when, jumps, got, want)
				}
			}
			watched(service("web", "800"))
			v.refreshed([]*corev1.Service{service("web", "800")}, "1000")
			v.wrote(service("web", "1001"))
			v.wrote(service("new", "1002"))
			expect("before", "new1002", "web1001")
			watched(service("back", "700")) // was deleted after the backup
			informer.version = "900"
			if jumps {
				informer.version = "1000000900"
				expect("the informer may still have to store what we wrote", "new1002", "web1001")
				time.Sleep(2 * orphanAge)
			}
			expect("restored", "back700", "web800")
			again := service("web", "901")
			if jumps {
				again.ResourceVersion = "1000000901"
			}
			v.wrote(again)
			expect("written again", "back700", "web"+again.ResourceVersion)
		}
	})
}

// The nodes of speakers are found again only when a pod changed.
func TestSpeakersNow(t *testing.T) {
	k := &Cluster{}
	k.pods = newView(cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, cache.Indexers{}), func(_, _ *corev1.Pod) {})
	put := func(name, node, address string, stops bool) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{HostIP: address}}
		if stops {
			p.DeletionTimestamp = new(metav1.Now())
		}
		must(t, k.pods.informer.GetStore().Add(p))
		k.pods.touch(p)
	}
	expect := func(addresses, stopping string) {
		t.Helper()
		if got := fmt.Sprint(k.SpeakerAddresses()); got != addresses {
			t.Errorf("speakers at %s, want %s", got, addresses)
		}
		stops := k.StoppingSpeakers()
		if got := fmt.Sprint(stops); got != stopping {
			t.Errorf("stopping are %s, want %s", got, stopping)
		}
		stops["mine"] = true // the caller may change it
		if before := k.speakersNow(); k.speakersNow() != before {
			t.Error("they are found again though nothing changed")
		}
	}
	expect("map[]", "map[]")
	put("a", "n1", "192.0.2.1", false)
	put("b", "n2", "192.0.2.2", false)
	put("c", "", "", false)
	expect("map[n1:192.0.2.1 n2:192.0.2.2]", "map[]")
	put("a", "n1", "192.0.2.1", true)
	expect("map[n1:192.0.2.1 n2:192.0.2.2]", "map[n1:true]")
	put("d", "n1", "192.0.2.1", false)
	expect("map[n1:192.0.2.1 n2:192.0.2.2]", "map[]")
}
