package kubeproxy

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"time"
)

// requestTimeout is the timeout of an HTTP request to kube-proxy's health endpoint.
const requestTimeout = time.Second

// newClient returns a client that connects to kube-proxy directly: it follows no redirect, and ignores the proxy
// settings of the environment.
func newClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout:       timeout,
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// get requests a page of kube-proxy. It reports whether a server listens there, even on an error.
func get(ctx context.Context, client *http.Client, page string) (response *http.Response, listens bool, err error) {
	ctx = httptrace.WithClientTrace(
		ctx,
		&httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { listens = true }},
	)

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+page, nil)
	if err == nil {
		response, err = client.Do(request)
	}

	return response, listens, err
}

// askLivez requests the health of kube-proxy at a host and port, and returns it as a sign. A server without the path is
// not kube-proxy.
func askLivez(ctx context.Context, address string) sign {
	response, listens, err := get(ctx, newClient(requestTimeout), address+"/livez")
	if err != nil && !listens {
		return silent
	}

	if err != nil {
		return unready
	}

	_ = response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
		return live
	case http.StatusNotFound:
		return silent
	}

	return unready
}
