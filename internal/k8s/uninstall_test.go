package k8s

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// TestUninstallServices: the finalizers go, and what OpenStack's cloud controller manager would take for its own. The
// record of the addresses stays, and so does the id that a user wrote.
func TestUninstallServices(t *testing.T) {
	service := func(name, id string, finalizers ...string) corev1.Service {
		return corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "7", Finalizers: finalizers,
			Annotations: map[string]string{config.OpenStackID: id, config.OpenStackAddress: "192.0.2.1", v1beta1.AnnotationAssigned: "for=ns/" + name + ",192.0.2.1=lan"},
		}}
	}
	list := corev1.ServiceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}, Items: []corev1.Service{
		service("own", "uid-own", v1beta1.FinalizerAddress, StandardFinalizer), service("sharer", "uid-own", "theirs", v1beta1.FinalizerAddress), service("foreign", "x", StandardFinalizer),
	}}
	sent := map[string]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			_ = json.NewEncoder(w).Encode(list)
			return
		}
		body, _ := io.ReadAll(r.Body)
		sent[r.URL.Path] = string(body)
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Service"}`)
	}))
	defer server.Close()
	clients, err := ClientsFor(&rest.Config{Host: server.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := clients.clearServices(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"/api/v1/namespaces/ns/services/own": `{"metadata":{"annotations":{"loadbalancer.openstack.org/load-balancer-address":null,"loadbalancer.openstack.org/load-balancer-id":null},` +
			`"finalizers":[],"resourceVersion":"7"}}`,
		"/api/v1/namespaces/ns/services/sharer": `{"metadata":{"annotations":{"loadbalancer.openstack.org/load-balancer-address":null},"finalizers":["theirs"],"resourceVersion":"7"}}`,
	}
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
