package daemon

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func get(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func admit(context.Context, string) int { return http.StatusOK }

func TestHandlers(t *testing.T) {
	var notReady error
	var hangs error
	health := Health(func() error { return hangs }, func() error { return notReady })
	if code, _ := get(t, health, "/readyz"); code != http.StatusOK {
		t.Errorf("ready: %d", code)
	}
	notReady = errors.New("informers not synced")
	if code, body := get(t, health, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "informers not synced") {
		t.Errorf("not ready: %d %q", code, body)
	}
	if code, _ := get(t, health, "/healthz"); code != http.StatusOK {
		t.Errorf("healthy while not ready: %d", code)
	}
	hangs = errors.New("the plan loop hangs")
	if code, body := get(t, health, "/healthz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "the plan loop hangs") {
		t.Errorf("hanging: %d %q", code, body)
	}

	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_test_total"})
	registry.MustRegister(counter)
	if _, body := get(t, Metrics(registry, admit), "/metrics"); !strings.Contains(body, "holdfast_test_total 0") {
		t.Errorf("metrics: %q", body)
	}

	debug := Debug(func() any { return map[string]int{"answer": 42} })
	if _, body := get(t, debug, "/debug/state"); !strings.Contains(body, `"answer": 42`) {
		t.Errorf("state: %q", body)
	}
	if code, _ := get(t, debug, "/debug/pprof/cmdline"); code != http.StatusOK {
		t.Errorf("pprof: %d", code)
	}
}

func TestServeRefusesATakenPort(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	if err := Serve(t.Context(), address, http.NotFoundHandler(), nil); err == nil || !strings.Contains(err.Error(), address) {
		t.Errorf("Serve on a taken port: %v", err)
	}
}
