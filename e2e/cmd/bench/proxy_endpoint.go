package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// servers waits, on a proxy's node, until the worker has, or has no more, a server at an address.
const servers = `root=/proc/$(pgrep -f "$1" | head -1)/root
until echo "show servers state" | socat -t2 - "UNIX-CONNECT:$root/run/holdfast/$3/worker.sock" | grep -q " $2 "; do :; done; date +%s%N`

// endpointsName is the name of the Service of proxyEndpoint, and of its EndpointSlice.
const endpointsName = "bench-endpoints"

// proxyEndpoint writes endpoints of a Service, and times until the workers of all proxies have them.
func proxyEndpoint(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	var got map[string]float64
	err := onProxies(ctx, b, func(*testbed.Stage) (err error) {
		got, err = timeEndpoints(ctx, b)
		return err
	})

	services := b.Kube.CoreV1().Services(app.Namespace)
	deleteErr := services.Delete(context.WithoutCancel(ctx), endpointsName, metav1.DeleteOptions{})
	return got, errors.Join(err, deleteErr)
}

// timeEndpoints makes a proxied Service, and writes its endpoints several times.
func timeEndpoints(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	err := createProxied(ctx, b, endpointsName)
	if err != nil {
		return nil, err
	}

	pods, err := readyProxies(ctx, b)
	if err != nil {
		return nil, err
	}

	before, _, err := hash(ctx, b, &pods[0], "")
	if err != nil {
		return nil, err
	}

	var times []time.Duration
	for i := range proxyRounds {
		took, err := timeEndpoint(ctx, b, pods, fmt.Sprintf("10.244.11.%d", 200+i))
		if err != nil {
			return nil, err
		}

		times = append(times, took)
		progress("%2d of %d: endpoints after %s", i+1, proxyRounds, took.Round(time.Millisecond))
	}

	after, _, err := hash(ctx, b, &pods[0], "")
	reloads := 0.0
	if after != before {
		reloads = 1
	}

	return map[string]float64{
		"proxy_endpoint_ms":      ms(quantile(times, 0.5)),
		"proxy_endpoint_reloads": reloads,
	}, err
}

// createProxied creates a Service without a selector, and waits until proxies serve it.
func createProxied(ctx context.Context, b *testbed.Bed, name string) error {
	service := testbed.Service(app, name)
	service.Spec.Selector = nil
	service.Spec.Ports = service.Spec.Ports[:1]
	metav1.SetMetaDataAnnotation(&service.ObjectMeta, "holdfast.dev/data-path", "Proxy")
	_, err := b.Kube.CoreV1().Services(app.Namespace).Create(ctx, service, metav1.CreateOptions{})
	if err != nil {
		return err
	}

	return waitProxied(ctx, b, app.Namespace, name)
}

// endpointSlice is the EndpointSlice of a Service with one endpoint. Its arguments are the Service and the address.
const endpointSlice = `{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, addressType: IPv4,
	metadata: {name: %[1]s, labels: {kubernetes.io/service-name: %[1]s}},
	ports: [{name: http, port: 8080, protocol: TCP}], endpoints: [{addresses: [%[2]s], conditions: {ready: true}}]}`

// timeEndpoint writes an endpoint, and returns the time until the workers of all proxies have it.
func timeEndpoint(ctx context.Context, b *testbed.Bed, pods []corev1.Pod, address string) (time.Duration, error) {
	var waiting errgroup.Group
	for _, p := range pods {
		command := []string{"timeout", "20", "bash", "-c", servers, "bash", worker, address, app.Namespace}
		waiting.Go(func() error {
			_, err := b.On(ctx, p.Spec.NodeName, command...)
			return err
		})
	}

	start := time.Now()
	err := b.Apply(ctx, app.Namespace, fmt.Appendf(nil, endpointSlice, endpointsName, address))
	err = errors.Join(err, waiting.Wait())
	return time.Since(start), err
}
