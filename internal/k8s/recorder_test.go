package k8s

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// diary stands in for an API server that stores Events.
type diary struct {
	mu sync.Mutex
	// refuse is the error of the next write, if any; down is the error of every write.
	refuse, down error
	// hangs is the name of an object for which no write ever returns.
	hangs   string
	written []*corev1.Event
}

func (d *diary) write(ctx context.Context, how string, e *corev1.Event) (*corev1.Event, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.down != nil:
		return nil, d.down
	case d.hangs != "" && d.hangs == e.InvolvedObject.Name:
		d.mu.Unlock()
		<-ctx.Done()
		d.mu.Lock()
		return nil, ctx.Err()
	}
	if err := d.refuse; err != nil {
		d.refuse = nil
		return nil, err
	}
	after := e.DeepCopy()
	after.Action = how
	d.written = append(d.written, after)
	return after, nil
}

func (d *diary) CreateWithEventNamespaceWithContext(ctx context.Context, e *corev1.Event) (*corev1.Event, error) {
	return d.write(ctx, "create", e)
}

func (d *diary) PatchWithEventNamespaceWithContext(ctx context.Context, e *corev1.Event, _ []byte) (*corev1.Event, error) {
	return d.write(ctx, "patch", e)
}

func (d *diary) refuses(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = err
}

func (d *diary) isDown(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = err
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
		var inBurst atomic.Bool
		d := &diary{}
		k := &Cluster{events: newRecorder(d, "test", inBurst.Load)}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); k.events.run(ctx) }()
		synctest.Wait()
		test(t, k, d, &inBurst)
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

// A write that fails through no fault of the Event is retried: for a while if the API
// server or a proxy fails, without limit if the server is unreachable.
func TestEventsOutlastTrouble(t *testing.T) {
	recordTo(t, func(t *testing.T, k *Cluster, d *diary, _ *atomic.Bool) {
		for name, err := range map[string]error{
			"busy":     apierrors.NewTooManyRequestsError("busy"),
			"webhook":  apierrors.NewInternalError(errors.New("failed calling webhook")),
			"gateway":  apierrors.NewGenericServerResponse(http.StatusBadGateway, "POST", schema.GroupResource{Resource: "events"}, "", "", 0, true),
			"starting": apierrors.NewServiceUnavailable("starting"),
			"slow":     apierrors.NewTimeoutError("slow", 0),
		} {
			d.refuses(err)
			k.sayTest(name, true)
			time.Sleep(eventRetry)
			if diff := cmp.Diff([]string{"create ns/" + name + " Normal Assigned: has it x1"}, d.lines()); diff != "" {
				t.Errorf("after %v (-want +got):\n%s", err, diff)
			}
		}
		d.isDown(&url.Error{Op: "Post", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}})
		k.sayTest("outage", false)
		time.Sleep(time.Hour)
		d.isDown(nil)
		time.Sleep(eventRetry)
		if diff := cmp.Diff([]string{"create ns/outage Warning Assigned: has it x1"}, d.lines()); diff != "" {
			t.Errorf("after an hour without an API server (-want +got):\n%s", diff)
		}
	})
}

// An Event that cannot be written is dropped, so that the others get their turn.
func TestEventsThatHang(t *testing.T) {
	for name, trouble := range map[string]func(*diary){
		"no answer":  func(d *diary) { d.hangs = "stuck" },
		"no success": func(d *diary) { d.isDown(apierrors.NewInternalError(errors.New("failed calling webhook"))) },
	} {
		t.Run(name, func(t *testing.T) {
			recordTo(t, func(t *testing.T, k *Cluster, d *diary, _ *atomic.Bool) {
				trouble(d)
				k.sayTest("stuck", false)
				k.sayTest("next", false)
				time.Sleep(75 * time.Second)
				d.isDown(nil)
				time.Sleep(eventRetry)
				if diff := cmp.Diff([]string{"create ns/next Warning Assigned: has it x1"}, d.lines()); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			})
		})
	}
}

// A thousand Events are paced, warnings first, each with the time of its call; during
// a burst hardly any is written.
func TestEventsArePaced(t *testing.T) {
	recordTo(t, func(t *testing.T, k *Cluster, d *diary, inBurst *atomic.Bool) {
		inBurst.Store(true)
		start := time.Now()
		for i := range 1000 {
			k.sayTest(fmt.Sprintf("web-%d", i), true)
		}
		time.Sleep(100 * time.Second)
		if n := len(d.read()); n < 90*eventRateInBurst || n > 110*eventRateInBurst {
			t.Errorf("%d Events in 100 s of a burst", n)
		}
		inBurst.Store(false)
		k.sayTest("trouble", false)
		time.Sleep(burstPoll + time.Second)
		written := d.read()
		if n := len(written); n < eventRate || n > eventRate+eventBurst+1 {
			t.Fatalf("%d Events in a second without a burst", n)
		}
		// One may have been chosen already.
		if written[0].Type != corev1.EventTypeWarning && written[1].Type != corev1.EventTypeWarning {
			t.Errorf("the warning is not among the first: %v", written[:2])
		}
		time.Sleep(time.Minute)
		written = d.read()
		last := written[len(written)-1]
		if last.InvolvedObject.Name != "web-999" || !last.FirstTimestamp.Time.Equal(start) {
			t.Errorf("the last is of %s at %v, called at %v", last.InvolvedObject.Name, last.FirstTimestamp.Time, start)
		}
	})
}
