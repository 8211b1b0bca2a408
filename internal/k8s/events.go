package k8s

import (
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record/util"
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
