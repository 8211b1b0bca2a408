package k8s

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// eventRate is how many Events are written a second, and eventBurst how many at once.
	eventRate  = 50
	eventBurst = 25
	// eventRateInCrowd is for while many Services get their addresses.
	eventRateInCrowd = 0.5
	// crowdLook is between looks whether there still is a crowd.
	crowdLook = 200 * time.Millisecond
	// mostEvents wait to be written; if there are more, the oldest are lost.
	mostEvents = 10_000
	// eventTime bounds one attempt. An API server waits up to 30 s for an admission webhook.
	eventTime = 40 * time.Second
	// eventRetry is between attempts that may succeed later, and eventPatience from when on
	// one that does not is given up: the others wait behind it.
	eventRetry    = 5 * time.Second
	eventPatience = time.Minute
)

// eventSink is where Events are written.
type eventSink interface {
	CreateWithEventNamespaceWithContext(ctx context.Context, event *corev1.Event) (*corev1.Event, error)
	PatchWithEventNamespaceWithContext(ctx context.Context, event *corev1.Event, patch []byte) (*corev1.Event, error)
}

// recorder writes Events in the background, one after the other at a pace, never in
// the way of a decision: each is a write like that of an address. Client-go's
// correlator makes a series of those that repeat, and drops what is too much about one object.
type recorder struct {
	log        *slog.Logger
	sink       eventSink
	crowded    func() bool
	correlator *record.EventCorrelator
	// wake has one slot: there is an Event.
	wake chan struct{}

	mu sync.Mutex
	// warnings go before notes: somebody looks for what is wrong.
	warnings, notes []*corev1.Event
	// losing: that Events are lost was logged, and more than half of mostEvents still wait.
	losing bool
}

func newRecorder(log *slog.Logger, sink eventSink, crowded func() bool) *recorder {
	return &recorder{
		log: log, sink: sink, crowded: crowded,
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

// lose drops the oldest note, or the oldest warning if there are only these. mu is held.
func (r *recorder) lose() {
	if !r.losing {
		r.log.Warn("Events are lost: too many wait to be written", "waiting", mostEvents)
	}
	r.losing = true
	if len(r.notes) > 0 {
		r.notes = r.notes[1:]
	} else {
		r.warnings = r.warnings[1:]
	}
}

// next takes out the Event that is to be written now, nil when there is none.
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

// waiting reports whether there is an Event to be written.
func (r *recorder) waiting() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.warnings)+len(r.notes) > 0
}

// run writes Events until ctx is cancelled.
func (r *recorder) run(ctx context.Context) {
	pace := flowcontrol.NewTokenBucketRateLimiter(eventRate, eventBurst)
	slow := flowcontrol.NewTokenBucketRateLimiter(eventRateInCrowd, 1)
	for {
		for r.waiting() {
			for r.crowded() && !slow.TryAccept() {
				if !sleep(ctx, crowdLook) {
					return
				}
			}
			if pace.Wait(ctx) != nil {
				return
			}
			// Chosen only now: a warning may have come while we waited.
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

// sleep reports whether the time has passed; it has not when ctx ended first.
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

// write writes one Event. It tries again for as long as the API server cannot be
// reached, and for eventPatience where that hangs or has a fault of its own.
func (r *recorder) write(ctx context.Context, e *corev1.Event) {
	result, err := r.correlator.EventCorrelate(e)
	if err != nil {
		r.log.Error("Event is not written", "error", err)
		return
	}
	if result.Skip {
		return
	}
	for since := time.Now(); ctx.Err() == nil; {
		err := r.try(ctx, result)
		switch {
		case err == nil, apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			return // written, or there is no place for it any more
		case refused(err):
			r.log.Warn("Event is refused", "reason", e.Reason, "message", e.Message, "error", err)
			return
		case unreached(err):
			since = time.Now() // an outage is no fault of this Event
		case time.Since(since) >= eventPatience && ctx.Err() == nil:
			r.log.Warn("Event is given up", "reason", e.Reason, "message", e.Message, "error", err)
			return
		}
		r.log.Debug("Event is not written yet", "error", err)
		sleep(ctx, eventRetry)
	}
}

// refused reports whether the API server said no for good: it is not too busy, and
// neither it nor a proxy in between failed.
func refused(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return false
	}
	code := answer.Status().Code
	return code != http.StatusTooManyRequests && code < http.StatusInternalServerError
}

// unreached reports whether there was no connection to send anything on.
func unreached(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "dial"
}

// try writes an Event, as another one of its series if it has one that still exists.
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
