package main

import (
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func lan() *v1beta1.IPAddressPool {
	return &v1beta1.IPAddressPool{
		ObjectMeta: metav1.ObjectMeta{Name: "lan", UID: "uid-lan"},
		Spec:       v1beta1.IPAddressPoolSpec{Addresses: []string{"192.0.2.0/24"}},
	}
}

// loadBalancer is a Service that has the addresses.
func loadBalancer(name string, addresses ...string) *corev1.Service {
	sv := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.1"},
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	for _, a := range addresses {
		sv.Finalizers = []string{v1beta1.FinalizerAddress}
		metav1.SetMetaDataAnnotation(&sv.ObjectMeta, v1beta1.AnnotationAssigned, a+"=lan")
		sv.Status.LoadBalancer.Ingress = append(sv.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
	}
	return sv
}

// TestOvertaken: a speaker's condition overtakes the write of a Service's address, and
// no watch kicks for it. The controller decides again by itself.
func TestOvertaken(t *testing.T) {
	server := &apiServer{objects: map[string]map[string]any{}}
	server.put(t, poolsPath, lan())
	server.put(t, servicesPath, loadBalancer("web"))
	s, kicks := newSyncer(t, server)
	server.put(t, servicesPath, loadBalancer("web"))
	if err := s.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if landed := server.landed(); hasPatched(landed, servicesPath+"/web") {
		t.Fatalf("the Service was written by a stale version: %v", landed)
	}
	kicked(t, kicks)
	if err := s.cluster.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	var web corev1.Service
	if server.get(t, servicesPath+"/web", &web); len(web.Status.LoadBalancer.Ingress) != 1 {
		t.Errorf("the Service has no address: %v", server.landed())
	}
}

// leaving is a Service that is being deleted and still has the addresses.
func leaving(name string, addresses ...string) *corev1.Service {
	sv := loadBalancer(name, addresses...)
	sv.DeletionTimestamp = new(metav1.Now())
	return sv
}

// TestReleaseWaitsForThePool: an edit of the pool overtakes what was to be remembered
// there. The Service that gives its address back has it until that is remembered.
func TestReleaseWaitsForThePool(t *testing.T) {
	server := &apiServer{objects: map[string]map[string]any{}}
	pool := lan()
	pool.Finalizers = []string{v1beta1.FinalizerAddress}
	server.put(t, poolsPath, pool)
	server.put(t, servicesPath, leaving("web", "192.0.2.1"))
	s, kicks := newSyncer(t, server)
	server.put(t, poolsPath, pool)
	if err := s.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if landed := server.landed(); len(landed) > 0 {
		t.Fatalf("the pool remembers nothing, and these were written: %v", landed)
	}
	kicked(t, kicks)
}
