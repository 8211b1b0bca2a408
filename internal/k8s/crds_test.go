package k8s

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
)

// TestWriteCRDs: a definition that is there is patched, a new one is created, none is deleted, and a refusal names the definition.
func TestWriteCRDs(t *testing.T) {
	const all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	var sent []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var o struct {
			Kind string
			Spec struct{ Versions []struct{ Name string } }
		}
		if err := json.Unmarshal(body, &o); err != nil || o.Kind != "CustomResourceDefinition" || len(o.Spec.Versions) != 1 || o.Spec.Versions[0].Name != "v1beta1" {
			t.Errorf("%s %s: %v: %s", r.Method, r.URL.Path, err, body)
		}
		name := strings.TrimPrefix(r.URL.Path, all)
		sent = append(sent, strings.Join([]string{r.Method, r.Header.Get("Content-Type"), name}, " "))
		switch {
		case name == "/floatingips.holdfast.dev":
			w.WriteHeader(http.StatusNotFound)
		case name == "/speakerstates.holdfast.dev":
			w.WriteHeader(http.StatusForbidden)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition"}`)
	}))
	defer server.Close()
	clients, err := ClientsFor(&rest.Config{Host: server.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join("..", "..", "charts", "holdfast", "crds")
	err = clients.WriteCRDs(t.Context(), slog.New(slog.DiscardHandler), dir)
	if err == nil || !strings.HasPrefix(err.Error(), "write speakerstates.holdfast.dev: ") {
		t.Errorf("a refusal: got %v", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, f := range files {
		plural := strings.TrimSuffix(strings.TrimPrefix(f.Name(), "holdfast.dev_"), ".yaml")
		want = append(want, "PATCH application/merge-patch+json /"+plural+".holdfast.dev")
	}
	at := slices.Index(want, "PATCH application/merge-patch+json /floatingips.holdfast.dev")
	if diff := cmp.Diff(slices.Insert(want, at+1, "POST application/json "), sent); diff != "" {
		t.Errorf("-want +sent\n%s", diff)
	}
	if err := clients.WriteCRDs(t.Context(), slog.New(slog.DiscardHandler), t.TempDir()); err == nil {
		t.Error("an empty directory is taken for definitions")
	}
}
