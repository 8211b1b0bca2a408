package kubeproxy

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"time"
)

// requestTimeout limits one HTTP request to kube-proxy.
const requestTimeout = time.Second

// newClient returns a client that talks to kube-proxy itself: it ignores redirects and the environment's proxy settings.
func newClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout:       timeout,
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// askLivez requests the health of kube-proxy at host and port. A server without either path is not kube-proxy; before
// Kubernetes 1.28 kube-proxy has the second path only.
func askLivez(ctx context.Context, address string) sign {
	client, listens := newClient(requestTimeout), false
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { listens = true }})
	for _, path := range []string{"/livez", "/healthz"} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			return silent
		}
		response, err := client.Do(request)
		if err != nil && !listens {
			return silent
		}
		if err != nil {
			return unready
		}
		_ = response.Body.Close()
		if response.StatusCode == http.StatusOK {
			return live
		}
		if response.StatusCode != http.StatusNotFound {
			return unready
		}
	}
	return silent
}
