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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	// costServices is the number of Services for the figures under load.
	costServices = 10_000
	costName     = "bench-cost"
	// idleTime is how long an idle speaker is watched.
	idleTime = time.Minute
	// costLimit for all the Services to be announced.
	costLimit = 20 * time.Minute
	// calmTime without a change of any of them is when their conditions are written.
	calmTime     = 20 * time.Second
	cpuMetric    = "process_cpu_seconds_total"
	memoryMetric = "process_resident_memory_bytes"
	// heartbeatPrefix precedes these metric names where a speaker reports them for its heartbeat process.
	heartbeatPrefix = "holdfast_heartbeat_"
	// serviceProxyLabel names another proxy than kube-proxy.
	serviceProxyLabel = "service.kubernetes.io/service-proxy-name"
)

// idleEmpty measures the share of a core of a speaker without Services.
func idleEmpty(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	share, err := idle(ctx, b, b.Cluster.Nodes()[1])
	return map[string]float64{"scale_idle_empty_millicores": share}, err
}

// cost measures the resources of an idle speaker with 10,000 Services: its share of a core,
// and its memory, freshly started; and the same of the leading
// controller while it assigned these addresses: CPU time for each Service, and memory.
func cost(ctx context.Context, b *testbed.Bed) (got map[string]float64, err error) {
	node := b.Cluster.Nodes()[1]
	got = map[string]float64{}
	objects := costObjects()
	if err := b.Apply(ctx, "", objects); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, clearCost(context.WithoutCancel(ctx), b, objects)) }()
	before, err := controllerMetrics(ctx, b)
	if err != nil {
		return nil, err
	}
	if err := makeCost(ctx, b); err != nil {
		return nil, err
	}
	after, err := controllerMetrics(ctx, b)
	if err != nil {
		return nil, err
	}
	got["ipam_controller_10k_mib"] = after[memoryMetric] / (1 << 20)
	got["ipam_controller_10k_ms_each"] = 1000 * (after[cpuMetric] - before[cpuMetric]) / costServices
	progress("%d Services are announced: %v", costServices, got)
	// A restart first: a heap that grew with the creation would distort the figure.
	if err := b.ReplaceSpeaker(ctx, node); err != nil {
		return nil, err
	}
	if err := calm(ctx, b); err != nil {
		return nil, err
	}
	if got["l2_speaker_10k_idle_millicores"], err = idle(ctx, b, node); err != nil {
		return nil, err
	}
	metrics, err := b.Metrics(ctx, node)
	if err != nil {
		return nil, err
	}
	got["l2_speaker_10k_mib"] = both(metrics, memoryMetric) / (1 << 20)
	progress("the Services are going: %v", got)
	return got, nil
}

// controllerMetrics are the metrics of the controller that leads.
func controllerMetrics(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	pod, _, err := leader(ctx, b)
	if err != nil {
		return nil, err
	}
	return b.ControllerMetrics(ctx, pod)
}

func costObjects() []byte {
	return fmt.Appendf(nil, `
apiVersion: holdfast.dev/v1beta1
kind: IPAddressPool
metadata: {name: %[1]s}
spec: {autoAssign: false, addresses: [10.154.0.0/16]}
---
apiVersion: holdfast.dev/v1beta1
kind: L2Advertisement
metadata: {name: %[1]s}
spec: {ipAddressPools: [%[1]s]}
`, costName)
}

// makeCost creates the Services and waits until all are announced. They have a label that
// excludes them from kube-proxy, which would load the machine of the measurement.
func makeCost(ctx context.Context, b *testbed.Bed) error {
	services := b.Kube.CoreV1().Services(app.Namespace)
	group, creating := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range costServices {
		group.Go(func() error {
			s := testbed.Service(app, fmt.Sprintf("cost-%05d", i))
			s.Labels = map[string]string{"bench": costName, serviceProxyLabel: "none"}
			s.Spec.IPFamilyPolicy, s.Spec.Ports = new(corev1.IPFamilyPolicySingleStack), s.Spec.Ports[:1]
			s.Spec.AllocateLoadBalancerNodePorts = new(false)
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, "holdfast.dev/pool", costName)
			_, err := services.Create(creating, s, metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("make %d Services: %w", costServices, err)
	}
	return testbed.Until(ctx, costLimit, "announcements of all Services", func(ctx context.Context) error {
		states, err := b.Resource(testbed.SpeakerStates).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		announced := int64(0)
		for i := range states.Items {
			n, _, err := unstructured.NestedInt64(states.Items[i].Object, "status", "owned", "ipv4")
			if err != nil {
				return fmt.Errorf("read speakerstate: %w", err)
			}
			announced += n
		}
		if announced < costServices {
			return fmt.Errorf("%d of %d are announced", announced, costServices)
		}
		return nil
	})
}

// calm waits for the end of all writes to the Services: conditions follow the announcements
// later, and a speaker that leaves and returns causes two moves.
func calm(ctx context.Context, b *testbed.Bed) error {
	ctx, cancel := context.WithTimeout(ctx, costLimit)
	defer cancel()
	changes, err := b.Kube.CoreV1().Services(app.Namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "bench=" + costName})
	if err != nil {
		return fmt.Errorf("watch Services: %w", err)
	}
	defer changes.Stop()
	for {
		select {
		case _, open := <-changes.ResultChan():
			if !open {
				return errors.New("the watch of Services ended before they were calm")
			}
		case <-time.After(calmTime):
			return nil
		}
	}
}

// idle returns the share of a core that a node's speaker takes, in thousandths.
func idle(ctx context.Context, b *testbed.Bed, node string) (float64, error) {
	// Let the work that the preparation caused end first.
	if err := pause(ctx, 10*time.Second); err != nil {
		return 0, err
	}
	before, err := b.Metrics(ctx, node)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := pause(ctx, idleTime); err != nil {
		return 0, err
	}
	after, err := b.Metrics(ctx, node)
	if err != nil {
		return 0, err
	}
	share := func(name string) float64 { return 1000 * (after[name] - before[name]) / time.Since(start).Seconds() }
	speaker, heartbeat := share(cpuMetric), share(heartbeatPrefix+cpuMetric)
	progress("millicores: speaker %.1f, heartbeat process %.1f", speaker, heartbeat)
	return speaker + heartbeat, nil
}

// both is the sum of a metric over the speaker and its heartbeat process.
func both(metrics map[string]float64, name string) float64 {
	return metrics[name] + metrics[heartbeatPrefix+name]
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func clearCost(ctx context.Context, b *testbed.Bed, objects []byte) error {
	services := b.Kube.CoreV1().Services(app.Namespace)
	var group errgroup.Group
	group.SetLimit(parallel)
	for i := range costServices {
		group.Go(func() error { return services.Delete(ctx, fmt.Sprintf("cost-%05d", i), metav1.DeleteOptions{}) })
	}
	return errors.Join(group.Wait(), b.Delete(ctx, "", objects))
}
