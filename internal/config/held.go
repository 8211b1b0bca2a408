package config

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Held is an object that may be kept in less room than the API's type takes, and is read only when something of it is
// asked.
type Held[T any] interface {
	metav1.Object
	Read() *T
}

type heldService struct{ *corev1.Service }

func (h heldService) Read() *corev1.Service { return h.Service }

type heldSlice struct{ *discoveryv1.EndpointSlice }

func (h heldSlice) Read() *discoveryv1.EndpointSlice { return h.EndpointSlice }
