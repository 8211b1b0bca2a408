package main

import (
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestKeepDenied: where the API server denies the FloatingIP of keep-floatingip, say by a ResourceQuota, the Service gets its
// address and says in the same write that the address will not be kept. That is no error of a run, and is not asked again at once.
func TestKeepDenied(t *testing.T) {
	server := &apiServer{objects: map[string]map[string]any{}}
	server.put(t, poolsPath, lan())
	sv := loadBalancer("web")
	metav1.SetMetaDataAnnotation(&sv.ObjectMeta, "loadbalancer.openstack.org/keep-floatingip", "true")
	server.put(t, servicesPath, sv)
	s := newTestSyncer(t, server)
	told := func() string {
		var got corev1.Service
		server.get(t, servicesPath+"/web", &got)
		c := meta.FindStatusCondition(got.Status.Conditions, v1beta1.ConditionAnnotationsHonoured)
		if len(got.Status.LoadBalancer.Ingress) != 1 || c == nil || c.Status != metav1.ConditionFalse || c.Reason != string(lb.NotKept) {
			t.Fatalf("status has %v, condition %+v", got.Status.LoadBalancer.Ingress, c)
		}
		return c.Message
	}
	syncOnce(t, s)
	first := told()
	if !strings.HasPrefix(first, "the address will not be kept: ") {
		t.Errorf("message is %q", first)
	}
	server.landed()
	syncOnce(t, s)
	if hasPatched(server.landed(), servicesPath+"/web") || told() != first {
		t.Errorf("the second run wrote again: %q", told())
	}
}
