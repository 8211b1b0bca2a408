package k8s

import (
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// recorder sends Events in the background, paced by client-go's correlator and
// never in the way of a decision.
type recorder struct {
	broadcaster record.EventBroadcaster
	record.EventRecorder
}

func newRecorder(component string) recorder {
	b := record.NewBroadcaster()
	return recorder{b, b.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: component})}
}

// Event says something about an object once: Normal when good, Warning when not.
func (k *Cluster) Event(o lb.Object, uid types.UID, good bool, reason lb.Reason, message string) {
	kind := corev1.EventTypeNormal
	if !good {
		kind = corev1.EventTypeWarning
	}
	k.events.Event(reference(o, uid), kind, string(reason), message)
}

func (k *Cluster) startEvents() (stop func()) {
	k.events.broadcaster.StartRecordingToSink(&typed.EventSinkImpl{Interface: k.clients.kube.CoreV1().Events("")})
	return k.events.broadcaster.Shutdown
}

func reference(o lb.Object, uid types.UID) *corev1.ObjectReference {
	version := v1beta1.GroupVersion.String()
	if o.Kind == "Service" || o.Kind == "Node" {
		version = "v1"
	}
	return &corev1.ObjectReference{APIVersion: version, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, UID: uid}
}
