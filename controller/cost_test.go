package main

import (
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// settledSyncer returns a syncer with so many Services and Nodes, of which nothing is left to write.
func settledSyncer(t testing.TB, services, nodes int) (*syncer, *apiServer) {
	t.Helper()
	_, measures := t.(*testing.B)
	server := newServer(t)
	server.live = measures
	pool := lan()
	pool.Spec.Addresses = []string{"10.0.0.0/16"}
	server.put(t, pool)
	for i := range nodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("n%04d", i), Labels: map[string]string{corev1.LabelHostname: fmt.Sprint(i)},
		}}
		n.Status.Addresses = []corev1.NodeAddress{{
			Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.30.%d.%d", i/250, 1+i%250),
		}}
		server.put(t, n)
	}
	for i := range services {
		server.put(t, loadBalancer(fmt.Sprintf("s%05d", i)))
	}
	syncOnce(t, newTestSyncer(t, server))
	s := newTestSyncer(t, server)
	for range 2 { // first the pool
		s.poolsWritten = time.Time{}
		syncOnce(t, s)
	}
	server.landed()
	return s, server
}

// TestWitness: of a Service that did not change nothing is compared, but by turns: something that should be written is
// found then, written and counted.
func TestWitness(t *testing.T) {
	const age = compareAge
	s, server := settledSyncer(t, 20, 0)
	start, times := time.Now(), map[time.Time]bool{}
	for _, c := range s.compared {
		times[c.unchangedUntil] = true
		if in := c.unchangedUntil.Sub(start); in < age/2 || in > 2*age {
			t.Errorf("%s is compared again in %v", c.assignment.Key, in)
		}
	}
	if len(times) < 10 {
		t.Errorf("20 Services are compared again at %d times only", len(times))
	}
	c := s.compared[7]
	changed := c.held.Read().DeepCopy()
	changed.Finalizers = nil
	c.held = plain{Service: changed} // it is another object for the same version: a bug
	run := func(repairs int64, writes ...string) {
		t.Helper()
		if _, err := s.sync(t.Context()); err != nil {
			t.Error(err)
		}
		if got := server.landed(); !slices.Equal(got, writes) || s.repairs.Load() != repairs {
			t.Errorf("%d repairs, written: %v; want %d, %v", s.repairs.Load(), got, repairs, writes)
		}
	}
	run(0)
	s.compared[7].unchangedUntil = start
	run(1, servicesPath+"/s00007/status")
	run(1)
	if s.compared[7].unchangedUntil.IsZero() {
		t.Error("nothing is to be written of the Service, and it will be compared again")
	}
	s.last.Load().Result.Assignments[5].Reason = lb.AddressKept // what was decided must not be changed either
	s.checkAt = time.Now().Add(time.Minute)
	run(1)
	s.checkAt = time.Now()
	run(2)
	if got := s.last.Load().Result.Assignments[5].Reason; got != lb.Assigned {
		t.Errorf("what was decided is checked, and stays %s", got)
	}
	if in := time.Until(s.checkAt); in < age-time.Minute || in > 2*age {
		t.Errorf("what is kept of decisions is checked again in %v", in)
	}
	run(2)
	last := slices.Clone(s.compared)
	if run(2); !slices.Equal(s.compared, last) {
		t.Error("what is to be written is found again though nothing changed")
	}
	kept := *last[3]
	if kept.keep = new(ipam.Keep); !s.differs(start, &kept, last[3]) || !kept.unchangedUntil.IsZero() {
		t.Error("a FloatingIP is to be made of a Service that is as it shall be, and nothing is written")
	}
}

// TestMore: details of a Service besides its assignment come and go, although the Service does not change.
func TestMore(t *testing.T) {
	s, _ := settledSyncer(t, 20, 0)
	last := slices.Clone(s.compared)
	run := func(change func(*syncRun)) {
		t.Helper()
		d := &syncRun{objects: s.cluster.Objects(), proxied: make([]proxyCondition, len(s.compared))}
		d.state, _ = s.compiler.Compile(d.objects, s.options)
		d.state.Now = time.Now()
		s.assign(d)
		change(d)
		must(t, s.writeServices(t.Context(), d))
	}
	key := last[7].compiled.Key
	for what, tt := range map[string]struct {
		change    func(*syncRun)
		isWritten func(*serviceWrite) bool
	}{
		"a problem": {func(d *syncRun) {
			d.problems = []lb.Problem{
				{Object: lb.Object{Kind: config.KindService, Namespace: key.Namespace, Name: key.Name}, Reason: lb.NodesUnfiltered},
			}
		}, func(w *serviceWrite) bool { return w.problems != nil }},
		"access": {func(d *syncRun) {
			d.frontends = []lb.Frontend{{Service: key, Access: lb.Access{RateLimit: 1}}}
		}, func(w *serviceWrite) bool { return w.frontends != nil }},
		"a FloatingIP": {func(d *syncRun) {
			d.result.Keep = []ipam.Keep{{Service: key, Refusal: "none"}}
		}, func(w *serviceWrite) bool { return w.keep != nil }},
		"proxies": {func(d *syncRun) {
			d.proxied[7].Type = v1beta1.ConditionProxied
		}, func(w *serviceWrite) bool { return w.proxied != nil }},
		"nodes": {func(*syncRun) {
			s.speakers.unfiltered.isKnown = !s.speakers.unfiltered.isKnown
		}, func(w *serviceWrite) bool { return !w.areNodesUnknown }},
	} {
		run(tt.change)
		if w := s.compared[7]; !tt.isWritten(w) {
			t.Errorf("%s of a Service is not written", what)
		}
		if s.speakers.unfiltered.isKnown = false; what != "nodes" && s.compared[8] != last[8] {
			t.Errorf("%s of a Service changes another one", what)
		}
		if run(func(*syncRun) {}); tt.isWritten(s.compared[7]) {
			t.Errorf("%s of a Service is never removed", what)
		}
		run(func(*syncRun) {}) // of what was written
		last = slices.Clone(s.compared)
	}
}

// TestSame: each input of a write makes a difference.
func TestSame(t *testing.T) {
	w := func() *serviceWrite { return &serviceWrite{assignment: &ipam.Assignment{}} }
	if !w().hasSameInputs(w()) {
		t.Fatal("two that are equal are not the same")
	}
	differ := func(of func(*serviceWrite) reflect.Value, without ...string) {
		for i := range of(w()).NumField() {
			o := w()
			field, name := of(o).Field(i), of(o).Type().Field(i).Name
			field = reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem()
			switch field.Kind() {
			case reflect.Slice:
				field.Set(reflect.MakeSlice(field.Type(), 1, 1))
			case reflect.Pointer:
				field.Set(reflect.New(field.Type().Elem()))
			case reflect.String:
				field.SetString("x")
			case reflect.Bool:
				field.SetBool(true)
			case reflect.Interface:
				field.Set(reflect.ValueOf(plain{}))
			default: // below
				if !slices.Contains([]string{"unchangedUntil", "Key"}, name) {
					t.Errorf("no change is known for %s", name)
				}
				name = ""
			}
			if name != "" && w().hasSameInputs(o) != slices.Contains(without, name) {
				t.Errorf("%s of %T makes no difference, or should make none", name, of(o).Interface())
			}
		}
	}
	// What comes of the assignment and of the compiled Service is compared by itself.
	differ(func(o *serviceWrite) reflect.Value { return reflect.ValueOf(o).Elem() }, "assignment", "compiled",
		"isPending", "hasMore", "service")
	differ(func(o *serviceWrite) reflect.Value { return reflect.ValueOf(o.assignment).Elem() })
	for name, o := range map[string]*serviceWrite{
		"the key":              {assignment: &ipam.Assignment{Key: lb.Key{Name: "x"}}},
		"the mode of proxies":  {assignment: &ipam.Assignment{}, proxied: &proxyCondition{wantsProxyMode: true}},
		"a sentence of egress": {assignment: &ipam.Assignment{}, egress: &egressCondition{isUnknown: true}},
		"a sentence of proxies": {
			assignment: &ipam.Assignment{}, proxied: &proxyCondition{Condition: metav1.Condition{Message: "x"}},
		},
	} {
		if w().hasSameInputs(o) {
			t.Errorf("%s makes no difference", name)
		}
	}
}

// BenchmarkRun is a run in which nothing changed, one Service did or there is one more, which gets its address: that is
// written and comes back. cpu-ms is the processor time of this process only.
func BenchmarkRun(b *testing.B) {
	for _, n := range []int{1_000, 3_000, 10_000} {
		s, server := settledSyncer(b, n, 1_000)
		more := n
		for name, change := range map[string]func(i int) error{
			"nothing": func(int) error { return nil },
			"one": func(i int) error {
				changed := k8s.ServiceUpdate{
					Service: s.compared[i*7919%n].held.Read(), Annotations: map[string]string{"n": fmt.Sprint(i)},
				}
				_, err := s.cluster.UpdateService(b.Context(), changed)
				return err
			},
			"more": func(int) error {
				server.put(b, loadBalancer(fmt.Sprintf("s%05d", more)))
				for more++; s.cluster.HeldServices().Len() < more; {
					runtime.Gosched()
				}
				return nil
			},
		} {
			b.Run(fmt.Sprint(n, "/", name), func(b *testing.B) {
				var used time.Duration
				for i := 0; b.Loop(); i++ {
					must(b, change(i))
					before := processorTime(b)
					syncOnce(b, s)
					used += processorTime(b) - before
				}
				b.ReportMetric(float64(used)/float64(b.N)/1e6, "cpu-ms/op")
			})
		}
	}
}

func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
