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
	expect := func(what string, h http.Handler, path string, code int, part string) {
		t.Helper()
		if got, body := get(t, h, path); got != code || !strings.Contains(body, part) {
			t.Errorf("%s: %d %q", what, got, body)
		}
	}
	var notReady, hangs error
	health := Health(func() error { return hangs }, func() error { return notReady })
	expect("ready", health, "/readyz", http.StatusOK, "ok")
	notReady = errors.New("informers not synced")
	expect("not ready", health, "/readyz", http.StatusServiceUnavailable, "informers not synced")
	expect("healthy while not ready", health, "/healthz", http.StatusOK, "ok")
	hangs = errors.New("the plan loop hangs")
	expect("hanging", health, "/healthz", http.StatusServiceUnavailable, "the plan loop hangs")

	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_test_total"}))
	expect("metrics", Metrics(registry, admit), "/metrics", http.StatusOK, "holdfast_test_total 0")

	debug := Debug(func() any { return map[string]int{"answer": 42} })
	expect("state", debug, "/debug/state", http.StatusOK, `"answer": 42`)
	expect("pprof", debug, "/debug/pprof/cmdline", http.StatusOK, "")
}

func TestServeRefusesATakenPort(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	if err := Serve(t.Context(), address, http.NotFoundHandler(), nil); err == nil ||
		!strings.Contains(err.Error(), address) {
		t.Errorf("Serve on a taken port: %v", err)
	}
}
