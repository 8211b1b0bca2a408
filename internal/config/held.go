package config

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Held is an object that may be stored in a more compact form than the type of the API. Read decodes the whole object.
type Held[T any] interface {
	metav1.Object
	Read() *T
}

// heldService is a Service that is not compacted.
type heldService struct{ *corev1.Service }

// Read returns the Service.
func (h heldService) Read() *corev1.Service { return h.Service }

// heldSlice is an EndpointSlice that is not compacted.
type heldSlice struct{ *discoveryv1.EndpointSlice }

// Read returns the EndpointSlice.
func (h heldSlice) Read() *discoveryv1.EndpointSlice { return h.EndpointSlice }
