package kubeproxy

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"time"
)

// requestTimeout limits one HTTP request to kube-proxy.
const requestTimeout = time.Second

// livez asks kube-proxy's health endpoint.
type livez struct {
	client  *http.Client
	address string
}

func newLivez(address string) livez {
	return livez{address: address, client: newClient(requestTimeout)}
}

// newClient returns a client that talks to kube-proxy itself: it ignores redirects and the environment's proxy settings.
func newClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout:       timeout,
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ask requests the health of kube-proxy. A server without either path is not kube-proxy; before
// Kubernetes 1.28 kube-proxy has the second path only.
func (l livez) ask(ctx context.Context) sign {
	for _, path := range []string{"/livez", "/healthz"} {
		switch code, listens := l.get(ctx, path); {
		case !listens:
			return silent
		case code == http.StatusOK:
			return live
		case code != http.StatusNotFound:
			return unready
		}
	}
	return silent
}

// get returns the status of the response, 0 without one, and whether the server accepted a connection.
func (l livez) get(ctx context.Context, path string) (code int, listens bool) {
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { listens = true }})
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.address+path, nil)
	if err != nil {
		return 0, false
	}
	response, err := l.client.Do(request)
	if err != nil {
		return 0, listens
	}
	_ = response.Body.Close()
	return response.StatusCode, true
}
