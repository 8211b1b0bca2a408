package k8s

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// diary stands in for an API server that stores Events.
type diary struct {
	mu sync.Mutex
	// refuse is the error of the next write, if any.
	refuse  error
	written []string
}

func (d *diary) write(how string, e *corev1.Event) (*corev1.Event, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.refuse; err != nil {
		d.refuse = nil
		return nil, err
	}
	d.written = append(d.written, fmt.Sprintf("%s %s/%s %s %s: %s x%d", how, e.InvolvedObject.Namespace,
		e.InvolvedObject.Name, e.Type, e.Reason, e.Message, e.Count))
	return e, nil
}

func (d *diary) Create(e *corev1.Event) (*corev1.Event, error)          { return d.write("create", e) }
func (d *diary) Patch(e *corev1.Event, _ []byte) (*corev1.Event, error) { return d.write("patch", e) }
func (d *diary) Update(e *corev1.Event) (*corev1.Event, error)          { return d.write("update", e) }

func (d *diary) refuses(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = err
}

// read returns what was written since the last call.
func (d *diary) read() []string {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.written
	d.written = nil
	return out
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, k := &diary{}, &Cluster{events: newRecorder("test")}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		var burst atomic.Bool
		running.Go(func() { k.events.run(ctx, d, burst.Load) })
		synctest.Wait()
		event := func(name string, good bool) {
			k.Event(lb.Object{Kind: "Service", Namespace: "ns", Name: name}, "1", good, lb.Assigned, "has it")
		}
		expect := func(what string, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, d.read()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		event("web", true)
		expect("an Event is written at once", "create ns/web Normal Assigned: has it x1")
		time.Sleep(time.Minute)
		event("web", true)
		expect("another of the series", "patch ns/web Normal Assigned: has it x2")
		d.refuses(apierrors.NewNotFound(schema.GroupResource{Resource: "events"}, "web"))
		event("web", true)
		expect("of a series that is forgotten", "create ns/web Normal Assigned: has it x3")

		d.refuses(apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "web", nil))
		event("refused", true)
		event("next", true)
		expect("a refused one is not in the way", "create ns/next Normal Assigned: has it x1")
		d.refuses(errors.New("connection refused"))
		event("late", true)
		expect("no answer")
		event("trouble", false)
		expect("a warning does not wait for good news", "create ns/trouble Warning Assigned: has it x1")
		time.Sleep(eventRetry)
		expect("the same again", "create ns/late Normal Assigned: has it x1")
		k.Event(lb.Object{Kind: "IPAddressPool", Name: "lan"}, "2", true, lb.Valid, "good")
		expect("of an object without a namespace", "create /lan Normal Valid: good x1")

		burst.Store(true)
		for i := range 4 {
			event(fmt.Sprint("many", i), true)
		}
		expect("notes wait in a burst", "create ns/many0 Normal Assigned: has it x1")
		event("bad", false)
		event("worse", false)
		expect("warnings do not", "create ns/bad Warning Assigned: has it x1", "create ns/worse Warning Assigned: has it x1")
		time.Sleep(burstInterval)
		expect("but for one a second", "create ns/many1 Normal Assigned: has it x1")
		burst.Store(false)
		time.Sleep(burstInterval)
		expect("and after it all come", "create ns/many2 Normal Assigned: has it x1",
			"create ns/many3 Normal Assigned: has it x1")
		stop()
		running.Wait()
	})
}

// Events are paced, and nothing else.
func TestEventsArePaced(t *testing.T) {
	c, err := ClientsFor(&rest.Config{Host: "192.0.2.1"}, "test")
	must(t, err)
	if qps := c.paced.GetRateLimiter().QPS(); qps != eventRate || c.kube.core.GetRateLimiter() != nil {
		t.Errorf("%v Events a second", qps)
	}
}
