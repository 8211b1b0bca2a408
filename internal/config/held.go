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

// heldServices returns the Services as they are held, or else the same of those that are not.
func heldServices(o Objects) []Held[corev1.Service] {
	if o.HeldServices != nil || len(o.Services) == 0 {
		return o.HeldServices
	}
	out := make([]Held[corev1.Service], 0, len(o.Services))
	for _, s := range o.Services {
		out = append(out, heldService{s})
	}
	return out
}
