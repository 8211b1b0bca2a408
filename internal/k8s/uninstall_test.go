package k8s

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestUninstallServices: the finalizers go, and what OpenStack's cloud controller manager would take for its own. The
// record of the addresses stays, and so does the id that a user wrote.
func TestUninstallServices(t *testing.T) {
	service := func(name, id string, finalizers ...string) corev1.Service {
		return corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "7", Finalizers: finalizers,
			Annotations: map[string]string{
				openstack.ID: id, openstack.Address: "192.0.2.1",
				v1beta1.AnnotationAssigned: "for=ns/" + name + ",192.0.2.1=lan",
			},
		}}
	}
	list := corev1.ServiceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}, Items: []corev1.Service{
		service("own", "uid-own", v1beta1.FinalizerAddress, StandardFinalizer),
		service("sharer", "uid-own", "theirs", v1beta1.FinalizerAddress), service("foreign", "x", StandardFinalizer),
	}}
	// Of Services that were let go the standard finalizer is ours, unless another load balancer serves them.
	released := func(name string, ingress ...corev1.LoadBalancerIngress) corev1.Service {
		s := service(name, "x", StandardFinalizer)
		s.Status.Conditions = []metav1.Condition{{
			Type: v1beta1.ConditionAddressAssigned, Status: metav1.ConditionFalse, Reason: string(lb.Released),
		}}
		s.Status.LoadBalancer.Ingress = ingress
		return s
	}
	list.Items = append(list.Items, released("released"),
		released("served", corev1.LoadBalancerIngress{IP: "198.51.100.1"}))
	var mu sync.Mutex
	sent := map[string]string{}
	clients := serving(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_ = json.NewEncoder(w).Encode(list)
			return
		}
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		sent[r.URL.Path] = string(body)
		mu.Unlock()
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Service"}`)
	})
	must(t, clients.clearServices(t.Context()))
	want := map[string]string{
		"/api/v1/namespaces/ns/services/own": `{"metadata":{"annotations":{"loadbalancer.openstack.org/load-balancer-address":null,` +
			`"loadbalancer.openstack.org/load-balancer-id":null},` +
			`"finalizers":[],"resourceVersion":"7"}}`,
		"/api/v1/namespaces/ns/services/released": `{"metadata":{"annotations":{"loadbalancer.openstack.org/load-balancer-address":null},"finalizers":[],` +
			`"resourceVersion":"7"}}`,
		"/api/v1/namespaces/ns/services/sharer": `{"metadata":{"annotations":{"loadbalancer.openstack.org/load-balancer-address":null},` +
			`"finalizers":["theirs"],"resourceVersion":"7"}}`,
	}
	if diff := cmp.Diff(want, sent); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// TestUninstallWithoutDaemonSet: finalizers go, and the log names the nodes where the packet filter is still there.
func TestUninstallWithoutDaemonSet(t *testing.T) {
	var patched, deleted atomic.Int32
	clients := serving(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/daemonsets/speaker"):
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		case r.Method == http.MethodPatch:
			patched.Add(1)
			_, _ = io.WriteString(w, `{}`)
		case r.Method == http.MethodDelete && strings.Contains("/speakerstates /egressallocations", path.Base(r.URL.Path)):
			deleted.Add(1)
			_, _ = io.WriteString(w, `{}`)
		case strings.HasSuffix(r.URL.Path, "/speakerstates") && r.Method == http.MethodGet:
			_, _ = io.WriteString(w, `{"items":[{"metadata":{"name":"w1"}},{"metadata":{"name":"w2"}}]}`)
		case strings.HasSuffix(r.URL.Path, "/ipaddresspools"):
			_, _ = io.WriteString(w,
				`{"items":[{"metadata":{"name":"lan","finalizers":["holdfast.dev/address"]}},{"metadata":{"name":"free"}}]}`)
		default:
			_, _ = io.WriteString(w, `{"items":[]}`)
		}
	})
	var log strings.Builder
	must(t, clients.Uninstall(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), "holdfast", "speaker", time.Second))
	if !strings.Contains(log.String(), `nodes="[w1 w2]"`) || patched.Load() != 1 || deleted.Load() != 2 {
		t.Errorf("%d patches, %d kinds are deleted, and the log is\n%s", patched.Load(), deleted.Load(), &log)
	}
}
