package k8s

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// eventRate is how many Events are written per second, and eventBurst how many at once.
	eventRate  = 50
	eventBurst = 25
	// eventRateInBurst applies while many Services get addresses.
	eventRateInBurst = 0.5
	// burstPoll is how often to check whether the burst is over.
	burstPoll = 200 * time.Millisecond
	// eventTime bounds one attempt. An API server waits up to 30 s for an admission webhook.
	eventTime = 40 * time.Second
	// eventRetry is between attempts.
	eventRetry = 5 * time.Second
)

// recorder writes Events in the background by client-go's broadcasters, which merge repeated Events into a series, drop
// the excess about one object, and lose what comes while a thousand wait. They are paced so that they do not delay
// decisions: each costs the API server as much as writing an address.
type recorder struct {
	sink    eventSink
	inBurst func() bool
	// warnings have a queue of their own: users look for failures.
	warnings, notes   record.EventBroadcaster
	warn, note        record.EventRecorder
	pace, paceInBurst flowcontrol.RateLimiter
}

// eventSink writes Events.
type eventSink interface {
	CreateWithEventNamespaceWithContext(ctx context.Context, event *corev1.Event) (*corev1.Event, error)
	PatchWithEventNamespaceWithContext(ctx context.Context, event *corev1.Event, patch []byte) (*corev1.Event, error)
}

func newRecorder(sink eventSink, component string, inBurst func() bool) *recorder {
	r := &recorder{
		sink: sink, inBurst: inBurst,
		warnings: record.NewBroadcaster(record.WithSleepDuration(eventRetry)), notes: record.NewBroadcaster(record.WithSleepDuration(eventRetry)),
		pace: flowcontrol.NewTokenBucketRateLimiter(eventRate, eventBurst), paceInBurst: flowcontrol.NewTokenBucketRateLimiter(eventRateInBurst, 1),
	}
	source := corev1.EventSource{Component: component}
	r.warn, r.note = r.warnings.NewRecorder(runtime.NewScheme(), source), r.notes.NewRecorder(runtime.NewScheme(), source)
	return r
}

// Event reports something about an object once: Normal if good, Warning if not.
// It is written in the background, with the time of this call.
func (k *Cluster) Event(o lb.Object, uid types.UID, good bool, reason lb.Reason, message string) {
	if good {
		k.events.note.Event(reference(o, uid), corev1.EventTypeNormal, string(reason), message)
	} else {
		k.events.warn.Event(reference(o, uid), corev1.EventTypeWarning, string(reason), message)
	}
}

func reference(o lb.Object, uid types.UID) *corev1.ObjectReference {
	version := v1beta1.GroupVersion.String()
	if o.Kind == "Service" || o.Kind == "Node" || o.Kind == "Secret" {
		version = "v1"
	}
	return &corev1.ObjectReference{APIVersion: version, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, UID: uid}
}

// run writes Events until ctx is cancelled.
func (r *recorder) run(ctx context.Context) {
	for _, b := range []record.EventBroadcaster{r.warnings, r.notes} {
		defer b.Shutdown()
		b.StartRecordingToSink(pacedSink{r, ctx})
	}
	<-ctx.Done()
}

// pacedSink is the broadcasters' sink, which knows no contexts.
type pacedSink struct {
	*recorder
	ctx context.Context
}

func (s pacedSink) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.write(func(ctx context.Context) (*corev1.Event, error) {
		return s.sink.CreateWithEventNamespaceWithContext(ctx, e)
	})
}

func (s pacedSink) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	return s.write(func(ctx context.Context) (*corev1.Event, error) {
		return s.sink.PatchWithEventNamespaceWithContext(ctx, e, patch)
	})
}

func (s pacedSink) Update(*corev1.Event) (*corev1.Event, error) {
	panic("k8s: no broadcaster updates Events")
}

// write waits for the Event's turn, and for as long as the API server cannot be reached. A broadcaster drops at once what the
// API server refuses; what fails otherwise it repeats for about a minute, while other Events wait behind it.
func (s pacedSink) write(send func(context.Context) (*corev1.Event, error)) (*corev1.Event, error) {
	for s.inBurst() && !s.paceInBurst.TryAccept() {
		if !sleep(s.ctx, burstPoll) {
			return nil, s.ctx.Err()
		}
	}
	for {
		if err := s.pace.Wait(s.ctx); err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(s.ctx, eventTime)
		after, err := send(ctx)
		cancel()
		var network *net.OpError
		var answer apierrors.APIStatus
		switch {
		case errors.As(err, &network) && network.Op == "dial" && sleep(s.ctx, eventRetry):
		case errors.Is(err, context.DeadlineExceeded):
			return nil, apierrors.NewTimeoutError(err.Error(), 0) // as refused: the next try would take as long
		case errors.As(err, &answer) && (answer.Status().Code == http.StatusTooManyRequests || answer.Status().Code >= http.StatusInternalServerError):
			return nil, fmt.Errorf("no fault of the Event: %w", err)
		default:
			return after, err
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
