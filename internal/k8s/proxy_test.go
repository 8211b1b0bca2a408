package k8s

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// The agent of a proxy reads five kinds, and no Secret: it has no right to more, and does not wait for one.
func TestProxyReads(t *testing.T) {
	start := time.Now()
	k := secretServer(t, nil, func(c *Config) { c.Speaker, c.Proxy = false, true })
	if err := k.WaitForSync(t.Context()); err != nil || time.Since(start) > secretsTime/2 {
		t.Fatalf("after %v: %v", time.Since(start), err)
	}
	if o := k.Objects(); len(k.views) != 5 || k.secrets != nil || len(o.Services) != 0 {
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
		return answer{200, corev1.SecretList{TypeMeta: metav1.TypeMeta{Kind: "SecretList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"},
			Items: items}}
	}
	event := func(kind, version string) map[string]any {
		return map[string]any{"type": kind, "object": secret(version)}
	}
	forbidden := answer{403, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonForbidden, Code: 403}}
	answers := make(chan answer, 10)
	events := make(chan map[string]any, 10)
	var from atomic.Value // the version that the last watch began at
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/shop/secrets" || r.FormValue("fieldSelector") != "metadata.name=tls" {
			t.Errorf("it asks for %s", r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
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
	}))
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	clients, err := ClientsFor(&rest.Config{Host: server.URL}, "test")
	must(t, err)
	k := &Cluster{clients: clients}
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
	for _, e := range []struct{ kind, version, want string }{{"ADDED", "2", "2"}, {"MODIFIED", "3", "3"}, {"DELETED", "4", "missing"}, {"ADDED", "5", "5"}} {
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
	stop()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end")
	}
}
