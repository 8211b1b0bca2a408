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
		v := newView(informers.NewSharedInformerFactory(client, 0).Core().V1().Services().Informer(),
			func(_, _ *corev1.Service) {})
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
		_, err := services.Create(t.Context(), watched, metav1.CreateOptions{})
		must(t, err)
		expect("created", true)
		expect("nothing happened since", false)
		own := watched.DeepCopy()
		own.ResourceVersion = "2"
		v.recordWrite(own)
		expect("our write", true)
		v.List()
		expect("the watch does not show it yet", true)
		_, err = services.Update(t.Context(), own, metav1.UpdateOptions{})
		must(t, err)
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
		must(t, informer.SetTransform(keepUnchanged(informer.GetStore(), trim)))
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
			node.ResourceVersion = version
			node.Status.Conditions[0].LastHeartbeatTime = at
			node.Status.Conditions[0].Status = ready
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

// lagging is an informer whose watch has come to a version.
type lagging struct {
	cache.SharedIndexInformer
	version string
}

func (l *lagging) LastSyncResourceVersion() string { return l.version }

// viewTest is a view of Services with its watch.
type viewTest struct {
	*testing.T
	view  *View[*corev1.Service]
	watch *lagging
}

func newViewTest(t *testing.T, version string) *viewTest {
	watch := &lagging{cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Service{}, 0, cache.Indexers{}), version}
	return &viewTest{t, newView(watch, func(_, _ *corev1.Service) {}), watch}
}

// versioned returns a version of a Service.
func versioned(name, version string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: version,
	}}
}

// lastOf returns the last version of a Service, which is being deleted and has no finalizer any more.
func lastOf(name, version string) *corev1.Service {
	s := versioned(name, version)
	s.DeletionTimestamp = new(metav1.Now())
	return s
}

// watched makes the watch show a version of a Service.
func (v *viewTest) watched(name, version string) {
	v.Helper()
	must(v, v.watch.GetStore().Update(versioned(name, version)))
	v.view.markStale(versioned(name, version))
}

// orphan ages our write of a Service.
func (v *viewTest) orphan(name string) {
	v.view.ownWrites[lb.Key{Namespace: "ns", Name: name}].pastSince = time.Now().Add(-2 * orphanAge)
}

// expect checks what the view shows, as name and version.
func (v *viewTest) expect(when string, want ...string) {
	v.Helper()
	var got []string
	for _, s := range v.view.List() {
		got = append(got, s.Name+s.ResourceVersion)
	}
	if !slices.Equal(got, want) {
		v.Errorf("%s: %v, want %v", when, got, want)
	}
}

func TestViewOverlaysOwnWrites(t *testing.T) {
	v := newViewTest(t, "12")
	v.watched("web", "9")
	v.expect("as watched", "web9")
	v.view.recordWrite(versioned("web", "10"))
	v.expect("our write, not watched yet", "web10")
	v.watched("web", "9")
	v.expect("the watch repeats the old", "web10")
	v.watched("web", "11")
	v.expect("the watch overtakes our write", "web11")
	v.view.recordWrite(versioned("web", "10"))
	v.expect("a late answer does not bring the old back", "web11")

	must(t, v.watch.GetStore().Delete(versioned("web", "11")))
	v.view.markStale(versioned("web", "11"))
	v.view.dropWrites(versioned("web", "11"))
	v.expect("deleted")
	v.view.recordWrite(versioned("web", "12"))
	v.expect("known from a list before the watch", "web12")
	v.orphan("web")
	v.expect("a write that the watch never shows is of a deleted object")

	v.view.recordWrite(versioned("web", "13"))
	v.view.recordWrite(lastOf("web", "14"))
	v.expect("we took its last finalizer")
}

// A view that is never listed, or seldom, notes no endless number of changed objects, and misses none.
func TestViewIsBounded(t *testing.T) {
	v := newViewTest(t, "1")
	name := func(i int) string { return fmt.Sprintf("s%05d", i) }
	for round, last := range []int{10, 3 * maxStaleKeys, 3*maxStaleKeys + 5} {
		for i := range last {
			v.watched(name(i), "1")
		}
		must(t, v.watch.GetStore().Delete(versioned(name(round), "1")))
		if v.view.markStale(versioned(name(round), "1")); len(v.view.staleKeys) > maxStaleKeys {
			t.Errorf("round %d: %d changes are noted", round, len(v.view.staleKeys))
		}
		list := v.view.List()
		byKey := func(a, b *corev1.Service) int { return config.KeyOf(a).Compare(config.KeyOf(b)) }
		if len(list) != last-1 || !slices.IsSortedFunc(list, byKey) {
			t.Errorf("round %d: %d objects are shown, not %d, or not in order", round, len(list), last-1)
		}
	}
}

// TestViewGhosts: what the watch still shows of an object that is gone does not count, and an object that it does not
// show yet exists for as long as it lags.
func TestViewGhosts(t *testing.T) {
	v := newViewTest(t, "9")
	v.watched("a", "8")
	v.view.recordWrite(lastOf("a", "10"))
	v.expect("its last finalizer was taken, and the watch shows how it was before")
	v.watched("b", "9")
	v.view.recordList([]*corev1.Service{versioned("c", "11"), versioned("d", "12")}, "20")
	v.expect("the list does not have b", "c11", "d12")
	v.watched("e", "15")
	v.watched("f", "21")
	v.expect("e came and went before the list, f came after it", "c11", "d12", "f21")
	v.watched("d", "13")
	v.expect("d was listed", "c11", "d13", "f21")
	v.orphan("c")
	v.watch.version = "10"
	v.expect("the watch hangs", "c11", "d13", "f21")
	v.watch.version = "11"
	v.expect("the watch has just come to c, which the informer may still have to store", "c11", "d13", "f21")
	v.orphan("c")
	v.expect("the watch is past c and does not show it", "d13", "f21")
}

// TestViewForgets: the deletion of an object takes our writes of that object, and no writes of a later object of its
// name.
func TestViewForgets(t *testing.T) {
	service := func(uid types.UID, version string) *corev1.Service {
		s := versioned("web", version)
		s.UID = uid
		return s
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
		v := newViewTest(t, "").view
		v.recordWrite(tt.wrote)
		v.dropWrites(tt.gone)
		if got := v.List(); len(got) != tt.kept {
			t.Errorf("%s: %v are left, want %d", tt.name, got, tt.kept)
		}
	}
}

// TestViewRestored: when etcd is restored from a backup, what was written or listed after that is no more. The restored
// etcd counts on from the backup, or jumps far ahead.
func TestViewRestored(t *testing.T) {
	for jumps, after := range map[bool]string{false: "", true: "1000000"} {
		synctest.Test(t, func(t *testing.T) {
			v := newViewTest(t, "1000")
			v.watched("web", "800")
			v.view.recordList([]*corev1.Service{versioned("web", "800")}, "1000")
			v.view.recordWrite(versioned("web", "1001"))
			v.view.recordWrite(versioned("new", "1002"))
			v.expect("before", "new1002", "web1001")
			v.watched("back", "700") // was deleted after the backup
			v.watch.version = after + "900"
			if jumps {
				v.expect("the informer may still have to store what we wrote", "new1002", "web1001")
				time.Sleep(2 * orphanAge)
			}
			v.expect("restored", "back700", "web800")
			v.view.recordWrite(versioned("web", after+"901"))
			v.expect("written again", "back700", "web"+after+"901")
		})
	}
}

// The nodes of speakers are found again only when a pod changed.
func TestSpeakersNow(t *testing.T) {
	k := &Cluster{}
	k.pods = newView(cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, cache.Indexers{}),
		func(_, _ *corev1.Pod) {})
	put := func(name, node, address string, stops bool) {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{HostIP: address},
		}
		if stops {
			p.DeletionTimestamp = new(metav1.Now())
		}
		must(t, k.pods.informer.GetStore().Add(p))
		k.pods.markStale(p)
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
		if before := k.speakerPods(); k.speakerPods() != before {
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
