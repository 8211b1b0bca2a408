package daemon

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// certificate makes one for a name, in files as a Secret mounts them.
func certificate(t *testing.T, name string) (crt, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	must(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{
		Type: "PRIVATE KEY", Bytes: pkcs8,
	})
}

// TestServeMetrics: who gets the metrics, by which protocol and certificate.
func TestServeMetrics(t *testing.T) {
	dir := t.TempDir()
	put := func(name string) {
		t.Helper()
		crt, key := certificate(t, name)
		for file, data := range map[string][]byte{"tls.crt": crt, "tls.key": key} {
			must(t, os.WriteFile(filepath.Join(dir, file), data, 0o600))
		}
	}
	put("first")
	own := func() (tls.Certificate, error) { return tls.X509KeyPair(certificate(t, "own")) }
	may := func(_ context.Context, token string) int {
		switch token {
		case "prometheus":
			return http.StatusOK
		case "":
			return http.StatusUnauthorized
		}
		return http.StatusForbidden
	}
	for _, tt := range []struct {
		settings       Settings
		scheme, header string
		status         int
		// by is the name in the certificate.
		by string
	}{
		{Settings{}, "http", "", http.StatusOK, ""},
		{Settings{}, "https", "", 0, ""},
		{Settings{MetricsTLS: "self"}, "https", "", http.StatusOK, "own"},
		{Settings{MetricsTLS: "self"}, "http", "", http.StatusBadRequest, ""},
		{Settings{MetricsTLS: dir}, "https", "", http.StatusOK, "first"},
		{Settings{MetricsTLS: dir, MetricsAuth: true}, "https", "Bearer prometheus", http.StatusOK, "first"},
		{Settings{MetricsTLS: dir, MetricsAuth: true}, "https", "", http.StatusUnauthorized, "first"},
		{Settings{MetricsAuth: true}, "https", "Bearer other", http.StatusForbidden, "own"},
		{Settings{MetricsAuth: true}, "http", "Bearer prometheus", http.StatusBadRequest, ""},
	} {
		tt.settings.MetricsListen = freeAddress(t)
		at := tt.settings.MetricsListen
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		registry := prometheus.NewRegistry()
		registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "holdfast_test_total"}))
		go func() { ended <- tt.settings.ServeMetrics(ctx, registry, may, own) }()
		status, by, body := ask(t, tt.scheme+"://"+at+"/metrics", tt.header)
		if status != tt.status || by != tt.by || strings.Contains(body, "holdfast_test_total") != (status == http.StatusOK) {
			t.Errorf("%+v by %s with %q: %d by %q: %s", tt.settings, tt.scheme, tt.header, status, by, body)
		}
		if tt.by == "first" {
			put("second")
			if _, by, _ := ask(t, "https://"+at+"/metrics", tt.header); by != "second" {
				t.Errorf("the files have the certificate second, the process serves the certificate %q", by)
			}
			put("first")
		}
		cancel()
		must(t, <-ended)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer free.Close()
	return free.Addr().String()
}

// ask returns the answer of a server as soon as it listens; 0 for none.
func ask(t *testing.T, url, header string) (status int, by, body string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	if header != "" {
		request.Header.Set("Authorization", header)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		answer, err := client.Do(request)
		var refused *net.OpError
		if errors.As(err, &refused) && refused.Op == "dial" && time.Now().Before(deadline) {
			continue
		}
		if err != nil {
			return 0, "", err.Error()
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		must(t, err)
		if answer.TLS != nil {
			by = answer.TLS.PeerCertificates[0].DNSNames[0]
		}
		return answer.StatusCode, by, string(text)
	}
}
