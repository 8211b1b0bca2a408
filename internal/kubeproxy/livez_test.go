package kubeproxy

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestLivez asks real servers.
func TestLivez(t *testing.T) {
	answer := func(livez, healthz int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/livez":
				w.WriteHeader(livez)
			case "/healthz":
				w.WriteHeader(healthz)
			}
		}
	}
	t.Setenv("HTTP_PROXY", "http://192.0.2.1:3128")
	for _, tt := range []struct {
		name   string
		server http.HandlerFunc
		want   sign
	}{
		{"it lives, on a node that is to go", answer(200, 503), live},
		{"it is not well", answer(503, 200), unready},
		{"it is old", answer(404, 200), live},
		{"old, and not well", answer(404, 503), unready},
		{"another program", answer(404, 404), silent},
		{"one that leads elsewhere", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}, unready},
		{"it hangs", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, unready},
	} {
		s := httptest.NewServer(tt.server)
		if got := askLivez(t.Context(), s.Listener.Addr().String()); got != tt.want {
			t.Errorf("%s: %s", tt.name, got.describe("it"))
		}
		s.CloseClientConnections()
		s.Close()
		if got := askLivez(t.Context(), s.Listener.Addr().String()); got != silent {
			t.Errorf("%s, and is gone: %s", tt.name, got.describe("it"))
		}
	}
}
