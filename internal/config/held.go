package config

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Held is an object that may be kept in less room than the API's type takes, and is read only when something of it is asked.
type Held[T any] interface {
	metav1.Object
	Read() *T
}

type heldService struct{ *corev1.Service }

func (h heldService) Read() *corev1.Service { return h.Service }

type heldSlice struct{ *discoveryv1.EndpointSlice }

func (h heldSlice) Read() *discoveryv1.EndpointSlice { return h.EndpointSlice }

// held returns objects as they are held, or else the same of those that are not.
func held[T any, O any](as []Held[T], objects []O, hold func(O) Held[T]) []Held[T] {
	if as != nil || len(objects) == 0 {
		return as
	}
	out := make([]Held[T], 0, len(objects))
	for _, o := range objects {
		out = append(out, hold(o))
	}
	return out
}
