package main

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

const (
	// rateRounds is the number of rounds in which each client gives all Services their addresses.
	rateRounds = 5
	// parallel bounds the concurrent writes of Holdfast, and of the bare client.
	parallel = 16
	// loadBalancer follows "type": in a patch that changes the type back.
	loadBalancer = `"LoadBalancer","allocateLoadBalancerNodePorts":false`
	// ratePool is the pool for which Holdfast's Services wait.
	ratePool = "bench-rate"
	// rateLimit bounds the wait for all Services.
	rateLimit = 10 * time.Minute
)

// rate lets many Services wait, and times the assignment of addresses to all of them, by Holdfast and by a bare client
// alternately. It returns the ratio of the two medians, which is above 1 if Holdfast is faster.
func rate(ctx context.Context, b *testbed.Bed) (map[string]float64, error) {
	err := makeServices(ctx, b)
	if err != nil {
		return nil, err
	}

	var ours, bare []time.Duration
	for i := range rateRounds {
		took, err := oursRound(ctx, b)
		if err != nil {
			return nil, err
		}

		ours = append(ours, took)
		took, err = bareRound(ctx, b)
		if err != nil {
			return nil, err
		}

		bare = append(bare, took)
		progress(
			"%d of %d: Holdfast %s, bare client %s",
			i+1,
			rateRounds,
			ours[i].Round(time.Millisecond),
			took.Round(time.Millisecond),
		)
	}

	return map[string]float64{"status_rate_ratio": ratioOf(bare, ours, 0.5)}, nil
}

// makeServices creates the Services of both clients.
func makeServices(ctx context.Context, b *testbed.Bed) error {
	return forAll(ctx, func(ctx context.Context, i int) error {
		ours := testbed.Service(app, fmt.Sprintf("ours-%04d", i))
		ours.Labels = map[string]string{"bench": "ours"}
		metav1.SetMetaDataAnnotation(&ours.ObjectMeta, "holdfast.dev/pool", ratePool)
		bare := asBare(testbed.Service(app, fmt.Sprintf("bare-%04d", i)))
		for _, s := range []*corev1.Service{ours, bare} {
			s.Spec.AllocateLoadBalancerNodePorts = new(false) // there are fewer than Services here
			// The kube-proxies of all nodes share the machine's cores, so they do not serve these Services.
			s.Labels["service.kubernetes.io/service-proxy-name"] = "none"
			_, err := b.Kube.CoreV1().Services(app.Namespace).Create(ctx, s, metav1.CreateOptions{})
			if err != nil {
				return fmt.Errorf("create Service %s: %w", s.Name, err)
			}
		}

		return nil
	})
}

// forAll calls do for each Service, several at once.
func forAll(ctx context.Context, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := range *statuses {
		group.Go(func() error { return do(ctx, i) })
	}

	return group.Wait()
}

// patch patches a Service.
func patch(ctx context.Context, b *testbed.Bed, name string, body []byte, subresource ...string) error {
	_, err := b.Kube.CoreV1().
		Services(app.Namespace).
		Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{}, subresource...)
	return err
}

// oursRound creates the pool for which Holdfast's Services wait, and removes it afterwards.
func oursRound(ctx context.Context, b *testbed.Bed) (time.Duration, error) {
	err := waitAll(ctx, b, "ours", pending)
	if err != nil {
		return 0, err
	}

	pool := []byte(`{apiVersion: holdfast.dev/v1beta1, kind: IPAddressPool, metadata: {name: ` + ratePool +
		`}, spec: {autoAssign: false, addresses: [10.152.0.0/16, "2001:db8:152::/64"]}}`)
	start := time.Now()
	err = b.Apply(ctx, "", pool)
	if err != nil {
		return 0, err
	}

	err = waitAll(ctx, b, "ours", addressed)
	if err != nil {
		return 0, err
	}

	took := time.Since(start)
	err = b.Delete(ctx, "", pool)
	if err != nil {
		return 0, err
	}

	return took, releaseOurs(ctx, b)
}

// releaseOurs makes Holdfast's Services wait again: they are of another type for a while.
func releaseOurs(ctx context.Context, b *testbed.Bed) error {
	const clusterIP = `"ClusterIP","externalTrafficPolicy":null,"allocateLoadBalancerNodePorts":null`
	err := setType(ctx, b, clusterIP)
	if err != nil {
		return err
	}

	err = waitAll(ctx, b, "ours", released)
	if err != nil {
		return err
	}

	return setType(ctx, b, loadBalancer)
}

// setType changes the type of Holdfast's Services.
func setType(ctx context.Context, b *testbed.Bed, kind string) error {
	body := []byte(`{"spec":{"type":` + kind + `}}`)
	return forAll(ctx, func(ctx context.Context, i int) error {
		return patch(ctx, b, fmt.Sprintf("ours-%04d", i), body)
	})
}

// bareRound makes the bare client write. A watch observes it as it observes Holdfast, at the same cost.
func bareRound(ctx context.Context, b *testbed.Bed) (time.Duration, error) {
	start := time.Now()
	group, both := errgroup.WithContext(ctx)
	group.Go(func() error { return waitAll(both, b, "bare", addressed) })
	group.Go(func() error {
		return forAll(both, func(ctx context.Context, i int) error {
			body, err := bareStatus(i)
			if err != nil {
				return err
			}
			return patch(ctx, b, fmt.Sprintf("bare-%04d", i), body, "status")
		})
	})

	err := group.Wait()
	took := time.Since(start)
	if err != nil {
		return 0, err
	}

	empty := []byte(`{"metadata":{"annotations":null},"status":null}`)
	return took, forAll(ctx, func(ctx context.Context, i int) error {
		return patch(ctx, b, fmt.Sprintf("bare-%04d", i), empty, "status")
	})
}

// addressed reports whether a Service has both addresses.
func addressed(s *corev1.Service) bool {
	return len(testbed.Addresses(s)) == 2
}

// pending reports whether a Service waits for addresses.
func pending(s *corev1.Service) bool {
	return meta.IsStatusConditionFalse(s.Status.Conditions, v1beta1.ConditionAddressAssigned)
}

// released reports whether a Service's addresses are released.
func released(s *corev1.Service) bool {
	return len(s.Finalizers) == 0
}

// waitAll watches until every Service of a client passes a check: repeated lists would slow
// the measured writes down. It restarts a watch that the API server ends.
func waitAll(ctx context.Context, b *testbed.Bed, whose string, wanted func(*corev1.Service) bool) error {
	ctx, cancel := context.WithTimeout(ctx, rateLimit)
	defer cancel()
	services := cache.NewFilteredListWatchFromClient(
		b.Kube.CoreV1().RESTClient(),
		"services",
		app.Namespace,
		func(o *metav1.ListOptions) { o.LabelSelector = "bench=" + whose },
	)
	done := map[string]bool{}
	_, err := watchtools.UntilWithSync(ctx, services, &corev1.Service{}, nil, func(event watch.Event) (bool, error) {
		s, ok := event.Object.(*corev1.Service)
		switch {
		case !ok:
		case wanted(s):
			done[s.Name] = true
		default:
			delete(done, s.Name)
		}

		return len(done) == *statuses, nil
	})
	if err != nil {
		return fmt.Errorf("wait for Services, %d of %d got there: %w", len(done), *statuses, err)
	}

	return nil
}
