package daemon

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	_ "net/http/pprof" // adds its pages to the default mux
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// MaxNamed bounds the number of series that name Services in one metric: any user may create many Services.
const MaxNamed = 2000

const (
	// pauseFactor is the pause after an answer with metrics, as a multiple of the time that the answer took.
	pauseFactor = 9
	// maxMetricsPause bounds that pause: on a busy machine an answer takes long, and two readers must both be answered
	// in time.
	maxMetricsPause = time.Second
	// metricsTimeout bounds the time that a reader waits for its turn and its answer.
	metricsTimeout = 30 * time.Second

	// maxConns and maxConnsPerAddress bound the open connections of each listener.
	maxConns           = 128
	maxConnsPerAddress = 8

	// readTimeout is the time to read a request, and the longest wait for the next request.
	readTimeout = 5 * time.Second
	// writeTimeout leaves time for long answers, such as profiles.
	writeTimeout = time.Minute
)

// Each page has a listener of its own, so that the debug pages can stay on the loopback address.

// Metrics serves /metrics from g. All readers together take at most a tenth of one core.
//
// authorize returns the status of the answer to the bearer of a token: 200 if it may read the metrics. authorize must
// limit its own requests to others, since everyone who reaches the port may send tokens. Readers that it admits at once
// do not wait for those that it still checks.
func Metrics(g prometheus.Gatherer, authorize func(ctx context.Context, token string) int) http.Handler {
	inner := promhttp.HandlerFor(g, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	turn := make(chan struct{}, 1)

	limited := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		status := authorize(r.Context(), token)
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
		time.AfterFunc(min(pauseFactor*time.Since(start), maxMetricsPause), func() { <-turn })
	})

	mux := http.NewServeMux()
	// TimeoutHandler buffers the answer, so that a slow reader does not keep the turn.
	mux.Handle("GET /metrics", http.TimeoutHandler(limited, metricsTimeout, "too many requests"))
	return mux
}

// Health serves /healthz and /readyz. They answer 200 if alive or ready returns nil, otherwise 503 with the text of the
// error.
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

// AlwaysHealthy is a check for Health that succeeds whenever the process runs.
func AlwaysHealthy() error { return nil }

// Debug serves /debug/state, which is the result of state as JSON, and /debug/pprof.
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

// ServeMetrics serves g as the settings ask, until ctx is cancelled. authorize is used if authentication is on.
// selfSigned returns the certificate for TLS without a directory of certificates.
func (s *Settings) ServeMetrics(
	ctx context.Context,
	g prometheus.Gatherer,
	authorize func(context.Context, string) int,
	selfSigned func() (tls.Certificate, error),
) error {
	if !s.MetricsAuth {
		authorize = func(context.Context, string) int { return http.StatusOK }
	}
	return Serve(ctx, s.MetricsListen, Metrics(g, authorize), s.metricsTLSConfig(selfSigned))
}

// metricsTLSConfig returns the TLS configuration of /metrics; nil for plain HTTP.
func (s *Settings) metricsTLSConfig(selfSigned func() (tls.Certificate, error)) *tls.Config {
	// Authentication implies TLS, because tokens must not be sent in clear text.
	isSelfSigned := s.MetricsTLS == "self" || s.MetricsTLS == "" && s.MetricsAuth

	switch {
	case isSelfSigned:
		c, err := selfSigned()
		return &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &c, err }}
	case s.MetricsTLS != "":
		certFile, keyFile := filepath.Join(s.MetricsTLS, "tls.crt"), filepath.Join(s.MetricsTLS, "tls.key")
		// The files are read for each connection, since the kubelet replaces them.
		return &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(certFile, keyFile)
			return &c, err
		}}
	default:
		return nil
	}
}

// Serve listens on address and serves h until ctx is cancelled, then returns nil. It uses TLS unless config is nil. It
// returns an error if it cannot listen.
func Serve(ctx context.Context, address string, h http.Handler, config *tls.Config) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}

	limiter := &ConnLimiter{Max: maxConns, MaxPerAddress: maxConnsPerAddress}
	listener = limiter.Listener(listener)
	if config != nil {
		listener = tls.NewListener(listener, config)
	}

	server := newServer(ctx, h)
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()

	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", address, err)
	}
	return nil
}

func newServer(ctx context.Context, h http.Handler) *http.Server {
	return &http.Server{
		Handler:      h,
		ReadTimeout:  readTimeout,
		WriteTimeout: writeTimeout,
		BaseContext:  func(net.Listener) context.Context { return ctx },
	}
}
