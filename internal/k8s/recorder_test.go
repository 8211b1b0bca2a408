package k8s

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
)

// diary is an API server's part in Events.
type diary struct {
	mu sync.Mutex
	// refuse is the error of the next write, if any.
	refuse  error
	written []*corev1.Event
}

func (d *diary) write(how string, e *corev1.Event) (*corev1.Event, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.refuse; err != nil {
		d.refuse = nil
		return nil, err
	}
	after := e.DeepCopy()
	after.Action = how
	d.written = append(d.written, after)
	return after, nil
}

func (d *diary) CreateWithEventNamespaceWithContext(_ context.Context, e *corev1.Event) (*corev1.Event, error) {
	return d.write("create", e)
}

func (d *diary) PatchWithEventNamespaceWithContext(_ context.Context, e *corev1.Event, _ []byte) (*corev1.Event, error) {
	return d.write("patch", e)
}

func (d *diary) refuses(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = err
}

// read returns what was written since the last call.
func (d *diary) read() []*corev1.Event {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.written
	d.written = nil
	return out
}

func (d *diary) lines() []string {
	var out []string
	for _, e := range d.read() {
		out = append(out, fmt.Sprintf("%s %s/%s %s %s: %s x%d", e.Action, e.InvolvedObject.Namespace, e.InvolvedObject.Name, e.Type, e.Reason, e.Message, e.Count))
	}
	return out
}

// record runs a test with a Cluster that writes Events to a diary.
func recordTo(t *testing.T, test func(*testing.T, *Cluster, *diary, *atomic.Bool)) {
	synctest.Test(t, func(t *testing.T) {
		var crowded atomic.Bool
		d := &diary{}
		k := &Cluster{config: Config{Component: "test"}, events: newRecorder(slog.New(slog.DiscardHandler), d, crowded.Load)}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); k.events.run(ctx) }()
		test(t, k, d, &crowded)
		stop()
		<-ended
	})
}

func (k *Cluster) sayTest(name string, good bool) {
	k.Event(lb.Object{Kind: "Service", Namespace: "ns", Name: name}, "1", good, lb.Assigned, "has it")
}

func TestEvents(t *testing.T) {
	recordTo(t, func(t *testing.T, k *Cluster, d *diary, _ *atomic.Bool) {
		expect := func(what string, want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, d.lines()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		k.sayTest("web", true)
		expect("an Event is written at once", "create ns/web Normal Assigned: has it x1")
		time.Sleep(time.Minute)
		k.sayTest("web", true)
		expect("another of the series", "patch ns/web Normal Assigned: has it x2")
		d.refuses(apierrors.NewNotFound(schema.GroupResource{Resource: "events"}, "web"))
		k.sayTest("web", true)
		expect("of a series that is forgotten", "create ns/web Normal Assigned: has it x3")

		d.refuses(apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "web", nil))
		k.sayTest("refused", true)
		k.sayTest("next", true)
		expect("a refused one is not in the way", "create ns/next Normal Assigned: has it x1")
		d.refuses(errors.New("connection refused"))
		k.sayTest("late", false)
		expect("no answer")
		time.Sleep(eventRetry)
		expect("the same again", "create ns/late Warning Assigned: has it x1")
		k.Event(lb.Object{Kind: "IPAddressPool", Name: "lan"}, "2", true, lb.Valid, "good")
		expect("of an object without a namespace", "create /lan Normal Valid: good x1")
	})
}

// A thousand Events are written at a pace, the warnings first, each with the time it
// was said; while there is a crowd next to none.
func TestEventsArePaced(t *testing.T) {
	recordTo(t, func(t *testing.T, k *Cluster, d *diary, crowded *atomic.Bool) {
		crowded.Store(true)
		start := time.Now()
		for i := range 1000 {
			k.sayTest(fmt.Sprintf("web-%d", i), true)
		}
		time.Sleep(100 * time.Second)
		if n := len(d.read()); n < 90*eventRateInCrowd || n > 110*eventRateInCrowd {
			t.Errorf("%d Events in 100 s of a crowd", n)
		}
		crowded.Store(false)
		k.sayTest("trouble", false)
		time.Sleep(crowdLook + time.Second)
		written := d.read()
		if n := len(written); n < eventRate || n > eventRate+eventBurst+1 {
			t.Fatalf("%d Events in a second without a crowd", n)
		}
		// One may have been chosen before.
		if written[0].Type != corev1.EventTypeWarning && written[1].Type != corev1.EventTypeWarning {
			t.Errorf("the warning is not among the first: %v", written[:2])
		}
		time.Sleep(time.Minute)
		written = d.read()
		last := written[len(written)-1]
		if last.InvolvedObject.Name != "web-999" || !last.FirstTimestamp.Time.Equal(start) {
			t.Errorf("the last is of %s at %v, said at %v", last.InvolvedObject.Name, last.FirstTimestamp.Time, start)
		}
		if k.events.waiting() {
			t.Error("Events still wait")
		}
	})
}

// What waits is bounded; notes are lost before warnings.
func TestEventsAreBounded(t *testing.T) {
	r := newRecorder(slog.New(slog.DiscardHandler), nil, nil)
	k := &Cluster{events: r}
	k.sayTest("trouble", false)
	for range 2 * mostEvents {
		k.sayTest("web", true)
	}
	if len(r.warnings) != 1 || len(r.notes) != mostEvents-1 {
		t.Errorf("%d warnings and %d notes wait", len(r.warnings), len(r.notes))
	}
	for range 2 * mostEvents {
		k.sayTest("trouble", false)
	}
	if len(r.warnings) != mostEvents || len(r.notes) != 0 {
		t.Errorf("%d warnings and %d notes wait", len(r.warnings), len(r.notes))
	}
}
