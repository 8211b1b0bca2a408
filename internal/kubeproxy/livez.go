package kubeproxy

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"time"
)

// answerTime is what kube-proxy has to answer.
const answerTime = time.Second

// livez is where kube-proxy says whether it lives.
type livez struct {
	client  *http.Client
	address string
}

func newLivez(address string) livez {
	return livez{address: address, client: &http.Client{
		Timeout: answerTime,
		// Never by the proxy that the environment names.
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// ask returns what the answer is a sign of. Who knows neither path is not kube-proxy; one of
// before Kubernetes 1.28 knows the second only.
func (l livez) ask(ctx context.Context) sign {
	for _, path := range []string{"/livez", "/healthz"} {
		switch code, listens := l.get(ctx, path); {
		case !listens:
			return nobody
		case code == http.StatusOK:
			return living
		case code != http.StatusNotFound:
			return unready
		}
	}
	return nobody
}

// get returns the status of an answer, 0 for none, and whether there was a connection at all.
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
