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
	// eventRate bounds the Events per second, and eventBurst the Events at once.
	eventRate  = 25
	eventBurst = 25
	// eventTime bounds one attempt. An API server waits up to 30 s for an admission webhook.
	eventTime = 40 * time.Second
	// eventRetry is the time between attempts.
	eventRetry = 5 * time.Second
	// eventObjects bounds the objects whose last Events are kept, to merge repetitions; each needs a KiB.
	eventObjects = 1024
	// burstInterval is the time between two notes while many Services get addresses. Statuses have the same content,
	// except for EndpointsRestored.
	burstInterval = time.Second
)

// recorder writes Events in the background by client-go's broadcasters. These merge repeated Events into a series, drop
// excess Events about one object, and drop new Events while a thousand wait. An Event that the API server refuses is
// dropped at once. An Event without an answer is retried for about a minute, while other Events wait.
type recorder struct {
	// warnings have a queue of their own: users look for failures.
	warnings record.EventBroadcaster
	notes    record.EventBroadcaster
	warn     record.EventRecorder
	note     record.EventRecorder
}

// newRecorder returns a recorder of Events with this source.
func newRecorder(component string) *recorder {
	options := []record.BroadcasterOption{
		record.WithSleepDuration(eventRetry),
		record.WithCorrelatorOptions(record.CorrelatorOptions{LRUCacheSize: eventObjects}),
	}
	warnings := record.NewBroadcaster(options...)
	notes := record.NewBroadcaster(options...)

	source := corev1.EventSource{Component: component}
	return &recorder{
		warnings: warnings,
		notes:    notes,
		warn:     warnings.NewRecorder(runtime.NewScheme(), source),
		note:     notes.NewRecorder(runtime.NewScheme(), source),
	}
}

// Event sends an Event about an object: Normal if isGood is set, otherwise Warning. It is written in the background,
// with the time of this call.
func (k *Cluster) Event(
	o lb.Object,
	uid types.UID,
	isGood bool,
	reason lb.Reason,
	message string,
) {
	object := reference(o, uid)
	if isGood {
		k.events.note.Event(object, corev1.EventTypeNormal, string(reason), message)
	} else {
		k.events.warn.Event(object, corev1.EventTypeWarning, string(reason), message)
	}
}

// reference returns the reference of an Event to its object.
func reference(o lb.Object, uid types.UID) *corev1.ObjectReference {
	version := v1beta1.GroupVersion.String()
	switch o.Kind {
	case "Service", "Node", "Secret":
		version = "v1"
	}

	return &corev1.ObjectReference{
		APIVersion: version,
		Kind:       o.Kind,
		Namespace:  o.Namespace,
		Name:       o.Name,
		UID:        uid,
	}
}

// run writes Events until ctx is cancelled. In a burst it writes notes at most once per burstInterval. isBurst reports
// whether there is one.
func (r *recorder) run(ctx context.Context, sink record.EventSink, isBurst func() bool) {
	defer r.warnings.Shutdown()
	defer r.notes.Shutdown()
	r.warnings.StartRecordingToSink(sink)
	r.notes.StartRecordingToSink(burstSink{
		EventSink: sink,
		ctx:       ctx,
		isBurst:   isBurst,
		limiter:   rate.NewLimiter(rate.Every(burstInterval), 1),
	})
	<-ctx.Done()
}

// eventSink writes Events to their namespaces, even while the process ends. It implements record.EventSink.
type eventSink struct{ kindClient[*corev1.Event] }

// Create creates an Event.
func (s eventSink) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.kindClient(e.Namespace).Create(context.Background(), e, metav1.CreateOptions{})
}

// Update replaces an Event.
func (s eventSink) Update(e *corev1.Event) (*corev1.Event, error) {
	return s.kindClient(e.Namespace).Update(context.Background(), e, metav1.UpdateOptions{})
}

// Patch changes an Event.
func (s eventSink) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	return s.kindClient(e.Namespace).
		Patch(context.Background(), e.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
}

// burstSink limits the rate of new Events in a burst.
type burstSink struct {
	record.EventSink
	ctx     context.Context
	isBurst func() bool
	limiter *rate.Limiter
}

// Create creates an Event. In a burst it first waits for its turn.
func (s burstSink) Create(e *corev1.Event) (*corev1.Event, error) {
	if s.isBurst() {
		_ = s.limiter.Wait(s.ctx) // an Event after the end of ctx is the last one
	}
	return s.EventSink.Create(e)
}
