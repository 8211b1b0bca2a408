package testbed

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// metricsPort of the speakers.
const metricsPort = "9217"

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
	out := map[string]float64{}
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		name, text, _ := strings.Cut(lines.Text(), " ")
		if value, err := strconv.ParseFloat(text, 64); err == nil && !strings.HasPrefix(name, "#") {
			out[name] = value
		}
	}
	return out, lines.Err()
}
