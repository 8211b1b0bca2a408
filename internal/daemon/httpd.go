package daemon

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	_ "net/http/pprof" // its pages are in the default mux
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// MaxNamed limits the series of a metric that name Services: any user may make many.
	MaxNamed = 2000
	// paused is how many times longer than it took to make the metrics nobody gets them again, but longestPause at
	// most: on a busy machine it takes long, and two who ask at once are both to get an answer in time.
	paused, longestPause = 9, time.Second
	// metricsTimeout is how long one who asks waits for that.
	metricsTimeout = 30 * time.Second
	// mostConnections may be open, mostOfOne of them from one address.
	mostConnections, mostOfOne = 128, 8
	// readTimeout is for a request, and for the next one; writeTimeout also for what takes long, as a profile does.
	readTimeout, writeTimeout = 5 * time.Second, time.Minute
)

// Each page has a listener of its own, so that the debug pages can stay on the loopback address.

// Metrics serves /metrics from g, to all readers together a part of the time only. may returns the status of the answer
// to the bearer of a token: 200 if it may read them. It must limit how often it asks others: whoever reaches the port
// may send a token, and readers who were admitted before do not wait for its answer.
func Metrics(g prometheus.Gatherer, may func(ctx context.Context, token string) int) http.Handler {
	inner := promhttp.HandlerFor(g, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	turn := make(chan struct{}, 1)
	paced := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := may(r.Context(), strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		if status != http.StatusOK {
			http.Error(w, http.StatusText(status), status)
			return
		}

		select {
		case turn <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		start := time.Now()
		inner.ServeHTTP(w, r)
		time.AfterFunc(min(paused*time.Since(start), longestPause), func() { <-turn })
	})
	mux := http.NewServeMux()
	// It buffers the answer, so that a slow reader keeps nobody waiting.
	mux.Handle("GET /metrics", http.TimeoutHandler(paced, metricsTimeout, "too many ask"))
	return mux
}

// Health serves /healthz and /readyz, which answer 200 while alive, or ready, returns nil, else 503 and the error's
// text.
func Health(alive, ready func() error) http.Handler {
	mux := http.NewServeMux()
	for path, check := range map[string]func() error{"/healthz": alive, "/readyz": ready} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			if err := check(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		})
	}
	return mux
}

// Runs is for a process of which nothing more is known than that it runs.
func Runs() error { return nil }

// Debug serves /debug/state, the value of state as JSON, and /debug/pprof.
func Debug(state func() any) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/state", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		if err := e.Encode(state()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.Handle("GET /debug/pprof/", http.DefaultServeMux)
	return mux
}

// ServeMetrics serves g as the settings ask. may is for those with authentication, own a certificate for those that
// name none.
func (s *Settings) ServeMetrics(
	ctx context.Context,
	g prometheus.Gatherer,
	may func(context.Context, string) int,
	own func() (tls.Certificate, error),
) error {
	if !s.MetricsAuth {
		may = func(context.Context, string) int { return http.StatusOK }
	}
	var config *tls.Config
	if s.MetricsTLS == "self" || s.MetricsTLS == "" && s.MetricsAuth { // a token is not for all who listen
		c, err := own()
		config = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &c, err }}
	} else if s.MetricsTLS != "" {
		config = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { // the kubelet replaces the files
			c, err := tls.LoadX509KeyPair(filepath.Join(s.MetricsTLS, "tls.crt"), filepath.Join(s.MetricsTLS, "tls.key"))
			return &c, err
		}}
	}
	return Serve(ctx, s.MetricsListen, Metrics(g, may), config)
}

// Serve listens on address and serves h until ctx is cancelled, by TLS unless config is nil, then returns
// nil. It returns an error when it cannot listen.
func Serve(ctx context.Context, address string, h http.Handler, config *tls.Config) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	listener = (&Crowd{All: mostConnections, OfOne: mostOfOne}).Listener(listener)
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	server := server(ctx, h)
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", address, err)
	}
	return nil
}

func server(ctx context.Context, h http.Handler) *http.Server {
	return &http.Server{
		Handler:      h,
		ReadTimeout:  readTimeout,
		WriteTimeout: writeTimeout,
		BaseContext:  func(net.Listener) context.Context { return ctx },
	}
}
