package k8s

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// secretServer is an API server with these Secrets and nothing else, for a speaker; with nil it refuses to show
// Secrets. A speaker asks for no other kind: its account, which every node has, gives no right to.
func secretServer(t *testing.T, secrets []corev1.Secret, change ...func(*Config)) *Cluster {
	t.Helper()
	kinds := map[string]string{
		"nodes": "Node", "daemonsets": "DaemonSet", "services": "Service", "pods": "Pod", "endpointslices": "EndpointSlice",
		"ipaddresspools": "IPAddressPool", "l2advertisements": "L2Advertisement",
		"bgpadvertisements": "BGPAdvertisement", "bgppeers": "BGPPeer",
		"bfdprofiles": "BFDProfile", "communities": "Community", "namespaces": "Namespace",
	}
	clients := serving(t, func(w http.ResponseWriter, r *http.Request) {
		refuse := func(code int32, reason metav1.StatusReason) {
			w.WriteHeader(int(code))
			_ = json.NewEncoder(w).Encode(metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
				Reason: reason, Code: code,
			})
		}
		resource := path.Base(r.URL.Path)
		if kinds[resource] == "" && resource != "secrets" {
			t.Errorf("a speaker asks for %s", resource)
		}
		list := map[string]any{
			"kind":       kinds[resource] + "List",
			"apiVersion": strings.TrimPrefix(strings.TrimPrefix(path.Dir(r.URL.Path), "/apis/"), "/api/"),
			"metadata":   map[string]any{"resourceVersion": "1"}, "items": []any{},
		}
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
				ofSecret := r.FormValue("fieldSelector") == "type="+string(s.Type) &&
					strings.HasSuffix(r.URL.Path, "/namespaces/"+s.Namespace+"/secrets")
				if ofSecret {
					items = append(items, s)
				}
			}
			list["kind"], list["apiVersion"], list["items"] = "SecretList", "v1", items
		case strings.Contains(r.URL.Path, "/namespaces/"):
			list["apiVersion"] = strings.Split(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/apis/"), "/api/"),
				"/namespaces/")[0]
		}
		_ = json.NewEncoder(w).Encode(list)
	})
	c := Config{
		Log: slog.New(slog.DiscardHandler), Namespace: "holdfast", DaemonSet: "speaker", Speaker: true, Kick: func() {},
	}
	for _, f := range change {
		f(&c)
	}
	k := New(clients, c)
	go func() { _ = k.Run(t.Context()) }()
	return k
}

// Of Secrets only passwords come into memory: of our namespace, of their type, without a copy in an annotation.
func TestSecrets(t *testing.T) {
	secret := func(namespace, name string, kind corev1.SecretType) corev1.Secret {
		return corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name,
				Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "Geheim-7"},
			},
			Type: kind, Data: map[string][]byte{"username": []byte("x"), "password": []byte("Geheim-7")},
		}
	}
	k := secretServer(t, []corev1.Secret{
		secret("holdfast", "ours", corev1.SecretTypeBasicAuth), secret("holdfast", "other-type", corev1.SecretTypeOpaque),
		secret("tenant", "theirs", corev1.SecretTypeBasicAuth),
	})
	must(t, k.WaitForSync(t.Context()))
	o := k.Objects()
	want := corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "holdfast", Name: "ours", ManagedFields: []metav1.ManagedFieldsEntry{}, // it was trimmed
		},
		Type: corev1.SecretTypeBasicAuth,
		Data: map[string][]byte{"password": []byte("Geheim-7")},
	}
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
	if err := k.WaitForSync(t.Context()); err != nil || time.Since(start) > 2*secretsTimeout {
		t.Fatalf("after %v: %v", time.Since(start), err)
	}
	if got := k.Objects().Secrets; len(got) != 0 {
		t.Errorf("%d Secrets", len(got))
	}
}

// The agent of a proxy reads five kinds, and no Secret: it has no right to more, and does not wait for one.
func TestProxyReads(t *testing.T) {
	start := time.Now()
	k := secretServer(t, nil, func(c *Config) { c.Speaker, c.Proxy = false, true })
	if err := k.WaitForSync(t.Context()); err != nil || time.Since(start) > secretsTimeout/2 {
		t.Fatalf("after %v: %v", time.Since(start), err)
	}
	if o := k.Objects(); len(k.views) != 5 || k.secrets != nil || o.ServicesByKey.Len() != 0 {
		t.Errorf("it reads %d kinds: %+v", len(k.views), o)
	}
}

// A Secret is followed by its name alone, through a forbidden start, versions, a deletion and the end of a watch.
func TestFollowSecret(t *testing.T) {
	type answer struct {
		code int
		body any
	}
	secret := func(version string) corev1.Secret {
		return corev1.Secret{TypeMeta: metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: "tls", Namespace: "shop", ResourceVersion: version}}
	}
	list := func(items ...corev1.Secret) answer {
		return answer{200, corev1.SecretList{
			TypeMeta: metav1.TypeMeta{Kind: "SecretList", APIVersion: "v1"},
			ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: items,
		}}
	}
	event := func(kind, version string) map[string]any {
		return map[string]any{"type": kind, "object": secret(version)}
	}
	forbidden := answer{
		403, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonForbidden, Code: 403},
	}
	answers := make(chan answer, 10)
	events := make(chan map[string]any, 10)
	var from atomic.Value // the version that the last watch began at
	k := &Cluster{clients: serving(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/shop/secrets" || r.FormValue("fieldSelector") != "metadata.name=tls" {
			t.Errorf("it asks for %s", r.URL)
		}
		if r.FormValue("watch") == "" {
			select {
			case a := <-answers:
				w.WriteHeader(a.code)
				_ = json.NewEncoder(w).Encode(a.body)
			case <-r.Context().Done():
			}
			return
		}
		from.Store(r.FormValue("resourceVersion"))
		for {
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				return
			case e := <-events:
				if e == nil {
					return
				}
				_ = json.NewEncoder(w).Encode(e)
			}
		}
	})}
	seen := make(chan string, 10)
	fail := true
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		k.FollowSecret(ctx, lb.Key{Namespace: "shop", Name: "tls"}, func(o *corev1.Secret, err error) error {
			switch {
			case apierrors.IsForbidden(err):
				seen <- "forbidden"
			case err != nil:
				seen <- err.Error()
			case o == nil:
				seen <- "missing"
			default:
				seen <- o.ResourceVersion
				if o.ResourceVersion == "7" && fail {
					fail = false
					return errors.New("not yet")
				}
			}
			return nil
		})
	}()
	next := func(want string) {
		t.Helper()
		select {
		case got := <-seen:
			if got != want {
				t.Fatalf("it sees %s, want %s", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("it sees nothing, want %s", want)
		}
	}
	answers <- forbidden
	next("forbidden")
	answers <- list()
	next("missing")
	for _, e := range []struct{ kind, version, want string }{
		{"ADDED", "2", "2"}, {"MODIFIED", "3", "3"}, {"DELETED", "4", "missing"}, {"ADDED", "5", "5"},
	} {
		events <- event(e.kind, e.version)
		next(e.want)
	}
	events <- event("BOOKMARK", "6")
	events <- nil // the watch ends
	events <- event("MODIFIED", "6")
	next("6")
	if got := from.Load(); got != "6" {
		t.Errorf("the second watch begins at version %v, want 6, the bookmark's, without a list", got)
	}
	events <- event("MODIFIED", "7") // which cannot be used yet
	next("7")
	answers <- list(secret("7"))
	next("7")
	events <- event("MODIFIED", "8")
	next("8")
	events <- nil
	events <- nil // this watch showed nothing: what it began at may be of an etcd that was restored since
	answers <- list(secret("4"))
	next("4")
	stop()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end")
	}
}
