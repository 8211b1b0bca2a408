package k8s

import (
	"context"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

const (
	// eventRate is how many Events are written per second, and eventBurst how many at once.
	eventRate  = 25
	eventBurst = 25
	// eventTime bounds one attempt. An API server waits up to 30 s for an admission webhook.
	eventTime = 40 * time.Second
	// eventRetry is between attempts.
	eventRetry = 5 * time.Second
	// eventObjects are how many objects the Events of which are remembered, a KiB each.
	eventObjects = 1024
	// burstInterval is between two notes while many Services get addresses: statuses say the same of all but
	// EndpointsRestored.
	burstInterval = time.Second
)

// recorder writes Events in the background by client-go's broadcasters, which merge repeated Events into a series, drop
// the excess about one object, and lose what comes while a thousand wait. What the API server refuses is dropped at
// once; what gets no answer is repeated for about a minute, while other Events wait behind it.
type recorder struct {
	// warnings have a queue of their own: users look for failures.
	warnings, notes record.EventBroadcaster
	warn, note      record.EventRecorder
}

func newRecorder(component string) *recorder {
	wait, remember := record.WithSleepDuration(
		eventRetry,
	), record.WithCorrelatorOptions(
		record.CorrelatorOptions{LRUCacheSize: eventObjects},
	)
	r := &recorder{warnings: record.NewBroadcaster(wait, remember), notes: record.NewBroadcaster(wait, remember)}
	source := corev1.EventSource{Component: component}
	r.warn, r.note = r.warnings.NewRecorder(
		runtime.NewScheme(),
		source,
	), r.notes.NewRecorder(
		runtime.NewScheme(),
		source,
	)
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

// run writes Events until ctx is cancelled, notes rarely in a burst.
func (r *recorder) run(ctx context.Context, sink record.EventSink, burst func() bool) {
	defer r.warnings.Shutdown()
	defer r.notes.Shutdown()
	r.warnings.StartRecordingToSink(sink)
	r.notes.StartRecordingToSink(rareSink{sink, ctx, burst, rate.NewLimiter(rate.Every(burstInterval), 1)})
	<-ctx.Done()
}

// eventSink writes Events where they belong, also the last ones while the process ends.
type eventSink struct{ kind[*corev1.Event] }

func (s eventSink) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.kind(e.Namespace).Create(context.Background(), e, metav1.CreateOptions{})
}

func (s eventSink) Update(e *corev1.Event) (*corev1.Event, error) {
	return s.kind(e.Namespace).Update(context.Background(), e, metav1.UpdateOptions{})
}

func (s eventSink) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	return s.kind(e.Namespace).
		Patch(context.Background(), e.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
}

// rareSink lets new Events wait for each other in a burst.
type rareSink struct {
	record.EventSink
	ctx   context.Context
	burst func() bool
	pace  *rate.Limiter
}

func (s rareSink) Create(e *corev1.Event) (*corev1.Event, error) {
	if s.burst() {
		_ = s.pace.Wait(s.ctx) // it is the last one if that ends
	}
	return s.EventSink.Create(e)
}
