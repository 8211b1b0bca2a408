package main

import (
	"slices"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestLosesWhateverIsRefused: a tenant edits a Service, so that it clashes with another that shares its address, and fills it so that
// the API server refuses to make it larger, or to change its finalizers. It loses the address all the same: otherwise
// kube-proxy would lead the other's clients to it.
func TestLosesWhateverIsRefused(t *testing.T) {
	sharer := func(name string, port int32) *corev1.Service {
		sv := loadBalancer(name)
		sv.Spec.Ports[0].Port = port
		metav1.SetMetaDataAnnotation(&sv.ObjectMeta, config.AnnotationSharingKey, "k")
		return sv
	}
	for _, tt := range []struct {
		name    string
		invalid func(*corev1.Service) bool
	}{
		{"annotations", func(sv *corev1.Service) bool {
			return sv.Name == "evil" && sv.Annotations[v1beta1.AnnotationAssigned] != ""
		}},
		{"finalizers", func(sv *corev1.Service) bool {
			return sv.Name == "evil" && !slices.Contains(sv.Finalizers, v1beta1.FinalizerAddress)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newTenancy(t, lan())
			c.create(sharer("evil", 80), sharer("web", 443))
			c.want("evil", "[192.0.2.0] Assigned")
			c.want("web", "[192.0.2.0] Assigned")
			c.server.invalid = tt.invalid
			sv := c.service("evil")
			delete(sv.Annotations, v1beta1.AnnotationAssigned)
			sv.Spec.Ports[0].Port = 443
			c.server.put(t, servicesPath, sv)
			s := newTestSyncer(t, c.server)
			for range 3 {
				runFresh(t, s)
			}
			for _, in := range c.service("evil").Status.LoadBalancer.Ingress {
				if in.IP == "192.0.2.0" {
					t.Error("it keeps the address")
				}
			}
			c.want("web", "[192.0.2.0] Assigned")
		})
	}
}

// TestReleasesWhateverIsRefused: a tenant changes the type of a Service on which our finalizers cannot be removed. Its address is free
// for others all the same.
func TestReleasesWhateverIsRefused(t *testing.T) {
	c := newTenancy(t, lan())
	c.create(loadBalancer("evil"))
	c.want("evil", "[192.0.2.0] Assigned")
	c.server.invalid = func(sv *corev1.Service) bool {
		return sv.Name == "evil" && !slices.Contains(sv.Finalizers, v1beta1.FinalizerAddress)
	}
	sv := c.service("evil")
	sv.Spec.Type, sv.Status.LoadBalancer = corev1.ServiceTypeClusterIP, corev1.LoadBalancerStatus{}
	c.server.put(t, servicesPath, sv)
	web := loadBalancer("web")
	metav1.SetMetaDataAnnotation(&web.ObjectMeta, config.AnnotationAddresses, "192.0.2.0")
	c.server.put(t, servicesPath, web)
	s := newTestSyncer(t, c.server)
	for range 3 {
		runFresh(t, s)
	}
	c.want("web", "[192.0.2.0] Assigned")
}
