package k8s

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// secretServer is an API server with these Secrets and nothing else, for a speaker; with nil it refuses to show Secrets. A speaker
// asks for no other kind: its account, which every node has, gives no right to.
func secretServer(t *testing.T, secrets []corev1.Secret, change ...func(*Config)) *Cluster {
	t.Helper()
	kinds := map[string]string{
		"nodes": "Node", "daemonsets": "DaemonSet", "services": "Service", "pods": "Pod", "endpointslices": "EndpointSlice",
		"ipaddresspools": "IPAddressPool", "l2advertisements": "L2Advertisement", "bgpadvertisements": "BGPAdvertisement", "bgppeers": "BGPPeer",
		"bfdprofiles": "BFDProfile", "communities": "Community", "namespaces": "Namespace",
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		refuse := func(code int32, reason metav1.StatusReason) {
			w.WriteHeader(int(code))
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason,
				Code: code})
		}
		resource := path.Base(r.URL.Path)
		if kinds[resource] == "" && resource != "secrets" {
			t.Errorf("a speaker asks for %s", resource)
		}
		list := map[string]any{"kind": kinds[resource] + "List", "apiVersion": strings.TrimPrefix(strings.TrimPrefix(path.Dir(r.URL.Path), "/apis/"), "/api/"),
			"metadata": map[string]any{"resourceVersion": "1"}, "items": []any{}}
		switch {
		case resource == "secrets" && secrets == nil:
			refuse(http.StatusForbidden, metav1.StatusReasonForbidden)
			return
		case r.FormValue("sendInitialEvents") != "":
			refuse(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
			return
		case r.FormValue("watch") != "":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return
		case resource == "secrets":
			var items []corev1.Secret
			for _, s := range secrets {
				if r.FormValue("fieldSelector") == "type="+string(s.Type) && strings.HasSuffix(r.URL.Path, "/namespaces/"+s.Namespace+"/secrets") {
					items = append(items, s)
				}
			}
			list["kind"], list["apiVersion"], list["items"] = "SecretList", "v1", items
		case strings.Contains(r.URL.Path, "/namespaces/"):
			list["apiVersion"] = strings.Split(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/apis/"), "/api/"), "/namespaces/")[0]
		}
		_ = json.NewEncoder(w).Encode(list)
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	clients, err := ClientsFor(&rest.Config{Host: server.URL}, "test")
	must(t, err)
	c := Config{Log: slog.New(slog.DiscardHandler), Namespace: "holdfast", DaemonSet: "speaker", Speaker: true, Kick: func() {}}
	for _, f := range change {
		f(&c)
	}
	k, err := New(clients, c)
	must(t, err)
	go func() { _ = k.Run(t.Context()) }()
	return k
}

// Of Secrets only passwords come into memory: of our namespace, of their type, without a copy in an annotation.
func TestSecrets(t *testing.T) {
	secret := func(namespace, name string, kind corev1.SecretType) corev1.Secret {
		return corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "Geheim-7"}},
			Type:       kind, Data: map[string][]byte{"username": []byte("x"), "password": []byte("Geheim-7")},
		}
	}
	k := secretServer(t, []corev1.Secret{
		secret("holdfast", "ours", corev1.SecretTypeBasicAuth), secret("holdfast", "other-type", corev1.SecretTypeOpaque),
		secret("tenant", "theirs", corev1.SecretTypeBasicAuth),
	})
	must(t, k.WaitForSync(t.Context()))
	o := k.Objects()
	want := corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: "ours"}, Type: corev1.SecretTypeBasicAuth,
		Data: map[string][]byte{"password": []byte("Geheim-7")}}
	if len(o.Secrets) != 1 || o.SecretNamespace != "holdfast" {
		t.Fatalf("%d Secrets of %q", len(o.Secrets), o.SecretNamespace)
	}
	if diff := cmp.Diff(&want, o.Secrets[0]); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// Without the right to read Secrets everything else starts, a little later.
func TestSecretsRefused(t *testing.T) {
	k := secretServer(t, nil)
	start := time.Now()
	if err := k.WaitForSync(t.Context()); err != nil || time.Since(start) > 2*secretsTime {
		t.Fatalf("after %v: %v", time.Since(start), err)
	}
	if got := k.Objects().Secrets; len(got) != 0 {
		t.Errorf("%d Secrets", len(got))
	}
}
