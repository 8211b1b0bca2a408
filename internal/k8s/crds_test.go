package k8s

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// TestWriteCRDs: a definition that is there is patched, a new one is created, none is deleted, and a refusal names the
// definition.
func TestWriteCRDs(t *testing.T) {
	const all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	var sent []string
	clients := serving(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var o struct {
			Kind string
			Spec struct{ Versions []struct{ Name string } }
		}
		err := json.Unmarshal(body, &o)
		oneVersion := len(o.Spec.Versions) == 1 && o.Spec.Versions[0].Name == "v1beta1"
		if err != nil || o.Kind != "CustomResourceDefinition" || !oneVersion {
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
		_, _ = io.WriteString(w, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition"}`)
	})
	dir := filepath.Join("..", "..", "charts", "holdfast", "crds")
	err := clients.WriteCRDs(t.Context(), slog.New(slog.DiscardHandler), dir)
	if err == nil || !strings.HasPrefix(err.Error(), "write speakerstates.holdfast.dev: ") {
		t.Errorf("a refusal: got %v", err)
	}
	files, err := os.ReadDir(dir)
	must(t, err)
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

// TestKernels: a kubelet may list as many addresses as it likes, and every speaker asks at once.
func TestKernels(t *testing.T) {
	n := &corev1.Node{}
	n.Name, n.Status.DaemonEndpoints.KubeletEndpoint.Port = "w1", 10250
	speakers := map[string]netip.Addr{"w1": netip.MustParseAddr("192.0.2.1"), "w2": netip.MustParseAddr("192.0.2.2")}
	add := func(kind corev1.NodeAddressType, address string) {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: kind, Address: address})
	}
	add(corev1.NodeExternalIP, "198.51.100.1")
	add(corev1.NodeInternalIP, "192.0.2.1")
	add(corev1.NodeInternalIP, "2001:db8::1")
	add(corev1.NodeHostName, "w1")
	got := kernels(speakers, []*corev1.Node{n}, 7946)
	want := []netip.AddrPort{
		netip.MustParseAddrPort("192.0.2.1:7946"), netip.MustParseAddrPort("192.0.2.1:10250"),
		netip.MustParseAddrPort("[2001:db8::1]:10250"),
	}
	if !slices.Equal(got["w1"], want) || len(got["w2"]) != 1 {
		t.Errorf("got %v", got)
	}
	for i := range 20_000 {
		add(corev1.NodeInternalIP, fmt.Sprintf("10.0.%d.%d", i/256, i%256))
	}
	if got := kernels(speakers, []*corev1.Node{n}, 7946); len(got["w1"]) > 8 {
		t.Errorf("a Node that lists 20,000 addresses is asked at %d", len(got["w1"]))
	}
}
