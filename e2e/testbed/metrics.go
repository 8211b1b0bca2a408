package testbed

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// metricsPort of both daemons.
const metricsPort = "9217"

// ControllerMetrics returns the metrics of a controller's pod, as Metrics does. It
// reads them through the API server, since the test's machine cannot reach pods.
func (b *Bed) ControllerMetrics(ctx context.Context, pod string) (map[string]float64, error) {
	text, err := b.Kube.CoreV1().RESTClient().Get().Namespace(Namespace).Resource("pods").
		Name(pod + ":" + metricsPort).SubResource("proxy").Suffix("metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read metrics of %s: %w", pod, err)
	}
	return readMetrics(bytes.NewReader(text))
}

// Metrics returns the metrics of a node's speaker, by name and labels.
func (b *Bed) Metrics(ctx context.Context, node string) (map[string]float64, error) {
	n, err := b.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	url := "http://" + net.JoinHostPort(n.Status.Addresses[0].Address, metricsPort) + "/metrics"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	// The cluster is never behind the machine's proxy.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("read metrics of %s: %w", node, err)
	}
	defer answer.Body.Close()
	return readMetrics(answer.Body)
}

func readMetrics(text io.Reader) (map[string]float64, error) {
	out := map[string]float64{}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		name, text, _ := strings.Cut(lines.Text(), " ")
		if value, err := strconv.ParseFloat(text, 64); err == nil && !strings.HasPrefix(name, "#") {
			out[name] = value
		}
	}
	return out, lines.Err()
}
