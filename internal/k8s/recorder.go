package k8s

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/util/flowcontrol"
)

// Event reports something about an object once: Normal if good, Warning if not.
// It is written in the background, with the time of this call.
func (k *Cluster) Event(o lb.Object, uid types.UID, good bool, reason lb.Reason, message string) {
	kind, now := corev1.EventTypeNormal, metav1.Now()
	if !good {
		kind = corev1.EventTypeWarning
	}
	namespace := o.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // required for Events of cluster-scoped objects
	}
	k.events.add(&corev1.Event{
		ObjectMeta:          metav1.ObjectMeta{Name: util.GenerateEventName(o.Name, now.UnixNano()), Namespace: namespace},
		InvolvedObject:      reference(o, uid),
		Type:                kind,
		Reason:              string(reason),
		Message:             message,
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Count:               1,
		Source:              corev1.EventSource{Component: k.config.Component},
		ReportingController: k.config.Component,
	})
}

func reference(o lb.Object, uid types.UID) corev1.ObjectReference {
	version := v1beta1.GroupVersion.String()
	if o.Kind == "Service" || o.Kind == "Node" || o.Kind == "Secret" {
		version = "v1"
	}
	return corev1.ObjectReference{APIVersion: version, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, UID: uid}
}

const (
	// eventRate is how many Events are written per second, and eventBurst how many at once.
	eventRate  = 50
	eventBurst = 25
	// eventRateInBurst applies while many Services get addresses.
	eventRateInBurst = 0.5
	// burstPoll is how often to check whether the burst is over.
	burstPoll = 200 * time.Millisecond
	// mostEvents bounds the queue; beyond it the oldest Events are lost.
	mostEvents = 10_000
	// eventTime bounds one attempt. An API server waits up to 30 s for an admission webhook.
	eventTime = 40 * time.Second
	// eventRetry is between attempts. After eventPatience a failing Event is dropped,
	// because the others wait behind it.
	eventRetry    = 5 * time.Second
	eventPatience = time.Minute
)

// eventSink writes Events.
type eventSink interface {
	CreateWithEventNamespaceWithContext(ctx context.Context, event *corev1.Event) (*corev1.Event, error)
	PatchWithEventNamespaceWithContext(ctx context.Context, event *corev1.Event, patch []byte) (*corev1.Event, error)
}

// recorder writes Events in the background, one after the other and paced, so that
// they do not delay decisions: each costs the API server as much as writing an address.
// Client-go's correlator merges repeated Events into a series, and drops the excess
// about one object.
type recorder struct {
	log        *slog.Logger
	sink       eventSink
	inBurst    func() bool
	correlator *record.EventCorrelator
	// wake has one slot: an Event is waiting.
	wake chan struct{}

	mu sync.Mutex
	// warnings precede notes: users look for failures.
	warnings, notes []*corev1.Event
	// losing: the loss of Events was logged, and more than half of mostEvents still wait.
	losing bool
}

func newRecorder(log *slog.Logger, sink eventSink, inBurst func() bool) *recorder {
	return &recorder{
		log: log, sink: sink, inBurst: inBurst,
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{}),
		wake:       make(chan struct{}, 1),
	}
}

// add never blocks.
func (r *recorder) add(e *corev1.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	queue := &r.notes
	if e.Type == corev1.EventTypeWarning {
		queue = &r.warnings
	}
	*queue = append(*queue, e)
	if len(r.warnings)+len(r.notes) > mostEvents {
		r.lose()
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// lose drops the oldest note, or the oldest warning if there are no notes. mu is held.
func (r *recorder) lose() {
	if !r.losing {
		r.log.Warn("Events lost: too many are waiting to be written", "waiting", mostEvents)
	}
	r.losing = true
	if len(r.notes) > 0 {
		r.notes = r.notes[1:]
	} else {
		r.warnings = r.warnings[1:]
	}
}

// next removes the Event to write now, nil if there is none.
func (r *recorder) next() *corev1.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, queue := range []*[]*corev1.Event{&r.warnings, &r.notes} {
		if len(*queue) > 0 {
			e := (*queue)[0]
			*queue = (*queue)[1:]
			r.losing = r.losing && len(r.warnings)+len(r.notes) > mostEvents/2
			return e
		}
	}
	return nil
}

// waiting reports whether an Event waits to be written.
func (r *recorder) waiting() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.warnings)+len(r.notes) > 0
}

// run writes Events until ctx is cancelled.
func (r *recorder) run(ctx context.Context) {
	pace := flowcontrol.NewTokenBucketRateLimiter(eventRate, eventBurst)
	slow := flowcontrol.NewTokenBucketRateLimiter(eventRateInBurst, 1)
	for {
		for r.waiting() {
			for r.inBurst() && !slow.TryAccept() {
				if !sleep(ctx, burstPoll) {
					return
				}
			}
			if pace.Wait(ctx) != nil {
				return
			}
			// Choose only now: a warning may have arrived during the wait.
			if e := r.next(); e != nil {
				r.write(ctx, e)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
	}
}

// sleep reports whether the time has passed; false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// write writes one Event. It retries for as long as the API server is unreachable,
// and for eventPatience if the server hangs or fails.
func (r *recorder) write(ctx context.Context, e *corev1.Event) {
	result, err := r.correlator.EventCorrelate(e)
	if err != nil {
		r.log.Error("cannot write Event", "error", err)
		return
	}
	if result.Skip {
		return
	}
	for since := time.Now(); ctx.Err() == nil; {
		err := r.try(ctx, result)
		switch {
		case err == nil, apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return // written, or its namespace is gone
		case rejected(err):
			r.log.Warn("Event rejected", "reason", e.Reason, "message", e.Message, "error", err)
			return
		case unreachable(err):
			since = time.Now() // an outage does not count against this Event
		case time.Since(since) >= eventPatience && ctx.Err() == nil:
			r.log.Warn("Event dropped", "reason", e.Reason, "message", e.Message, "error", err)
			return
		}
		r.log.Debug("cannot write Event yet", "error", err)
		sleep(ctx, eventRetry)
	}
}

// rejected reports whether the API server rejected the Event for good: the server is
// not too busy, and neither it nor a proxy failed.
func rejected(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return false
	}
	code := answer.Status().Code
	return code != http.StatusTooManyRequests && code < http.StatusInternalServerError
}

// unreachable reports whether no connection could be made.
func unreachable(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "dial"
}

// try writes an Event, or updates its series if that still exists.
func (r *recorder) try(ctx context.Context, what *record.EventCorrelateResult) error {
	ctx, cancel := context.WithTimeout(ctx, eventTime)
	defer cancel()
	e := what.Event
	var after *corev1.Event
	var err error
	if e.Count > 1 {
		after, err = r.sink.PatchWithEventNamespaceWithContext(ctx, e, what.Patch)
	}
	if e.Count <= 1 || apierrors.IsNotFound(err) {
		e.ResourceVersion = ""
		after, err = r.sink.CreateWithEventNamespaceWithContext(ctx, e)
	}
	if err == nil {
		r.correlator.UpdateState(after)
	}
	return err
}
