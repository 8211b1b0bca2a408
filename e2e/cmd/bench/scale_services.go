package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

const (
	scaleName     = "bench-scale"
	scaleSelector = "bench=" + scaleName
	// scaleLimit bounds the wait for all Services.
	scaleLimit = 20 * time.Minute
	// calmTime is the time without a change after which all conditions count as written.
	calmTime = 20 * time.Second
	// repeatTime exceeds the time for which a moved address is announced again, and handed over.
	repeatTime = time.Minute
)

// scaleObjects returns the pool of the Services, and their advertisement.
func scaleObjects() []byte {
	return fmt.Appendf(nil, `
apiVersion: holdfast.dev/v1beta1
kind: IPAddressPool
metadata: {name: %[1]s}
spec: {addresses: [10.154.0.0/16]}
---
apiVersion: holdfast.dev/v1beta1
kind: L2Advertisement
metadata: {name: %[1]s}
spec: {ipAddressPools: [%[1]s]}
`, scaleName)
}

// fleet are the Services, each with one EndpointSlice of two endpoints on Nodes of the crowd.
type fleet struct {
	b     *testbed.Bed
	crowd crowd
}

// serviceName returns the name of a Service.
func serviceName(i int) string {
	return fmt.Sprintf("scale-%05d", i)
}

// service returns a Service. kube-proxy serves it, since Holdfast announces no Service that kube-proxy ignores.
func (f fleet) service(i int, class *string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:   serviceName(i),
			Labels: map[string]string{"bench": scaleName},
		},
		Spec: corev1.ServiceSpec{
			Type:                          corev1.ServiceTypeLoadBalancer,
			LoadBalancerClass:             class,
			AllocateLoadBalancerNodePorts: new(false), // there are fewer than Services here
			IPFamilyPolicy:                new(corev1.IPFamilyPolicySingleStack),
			Ports: []corev1.ServicePort{
				{
					Name:       "http",
					Port:       testbed.HTTPPort,
					TargetPort: intstr.FromInt32(8080),
				},
			},
		},
	}
}

// slice has the endpoints of a Service, of which the second is of a generation: another one is another pod on another
// Node.
func (f fleet) slice(i, generation int, ready bool) *discoveryv1.EndpointSlice {
	endpoint := func(at, node int) discoveryv1.Endpoint {
		address := hostAt(netip.MustParseAddr("10.192.0.1"), at)
		return discoveryv1.Endpoint{
			Addresses: []string{address.String()},
			NodeName:  &f.crowd.names[node%len(f.crowd.names)],
			Conditions: discoveryv1.EndpointConditions{
				Ready:       &ready,
				Serving:     &ready,
				Terminating: new(false),
			},
			TargetRef: &corev1.ObjectReference{
				Kind:      "Pod",
				Namespace: app.Namespace,
				Name:      fmt.Sprintf("%s-%x", serviceName(i), at),
			},
		}
	}

	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: serviceName(i),
			Labels: map[string]string{
				"bench":                      scaleName,
				discoveryv1.LabelServiceName: serviceName(i),
				discoveryv1.LabelManagedBy:   scaleName,
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{
				Name:     new("http"),
				Port:     new(int32(8080)),
				Protocol: new(corev1.ProtocolTCP),
			},
		},
		Endpoints: []discoveryv1.Endpoint{
			endpoint(2*i, i),
			endpoint(2*i+1+generation<<18, i+1+generation),
		},
	}
}

// write replaces the endpoints of a Service.
func (f fleet) write(ctx context.Context, i, generation int, ready bool) error {
	body, err := json.Marshal(map[string]any{"endpoints": f.slice(i, generation, ready).Endpoints})
	if err == nil {
		_, err = f.b.Kube.DiscoveryV1().
			EndpointSlices(app.Namespace).
			Patch(
				ctx,
				serviceName(i),
				types.MergePatchType,
				body,
				metav1.PatchOptions{},
			)
	}

	return err
}

// grow creates Services up to a number, and returns the times at which they got their addresses, in order. It calls
// next before each creation, unless that is nil, and several at once.
func (f fleet) grow(ctx context.Context, from, to int, class *string, next func(i int)) (at []time.Time, err error) {
	group, both := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		at, err = f.waitAddresses(both, to)
		return err
	})
	group.Go(func() error {
		return f.each(both, from, to, func(ctx context.Context, i int) error {
			if next != nil {
				next(i)
			}

			return f.create(ctx, i, class)
		})
	})
	return at, group.Wait()
}

// create creates a Service and its EndpointSlice.
func (f fleet) create(ctx context.Context, i int, class *string) error {
	services := f.b.Kube.CoreV1().Services(app.Namespace)
	_, err := services.Create(ctx, f.service(i, class), metav1.CreateOptions{})
	if err != nil {
		return err
	}

	endpointSlices := f.b.Kube.DiscoveryV1().EndpointSlices(app.Namespace)
	_, err = endpointSlices.Create(ctx, f.slice(i, 0, true), metav1.CreateOptions{})
	return err
}

// each calls do for some Services, several at once.
func (f fleet) each(ctx context.Context, from, to int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i := from; i < to; i++ {
		group.Go(func() error { return do(ctx, i) })
	}

	return group.Wait()
}

// watch calls do with each state of each Service until it returns true.
func (f fleet) watch(ctx context.Context, do func(s *corev1.Service) bool) error {
	ctx, cancel := context.WithTimeout(ctx, scaleLimit)
	defer cancel()
	source := cache.NewFilteredListWatchFromClient(
		f.b.Kube.CoreV1().RESTClient(),
		"services",
		app.Namespace,
		func(o *metav1.ListOptions) { o.LabelSelector = scaleSelector },
	)
	_, err := watchtools.UntilWithSync(ctx, source, &corev1.Service{}, nil, func(event watch.Event) (bool, error) {
		s, ok := event.Object.(*corev1.Service)
		return ok && do(s), nil
	})

	return err
}

// waitAddresses waits until so many Services have their addresses, and returns when each was seen to have them.
func (f fleet) waitAddresses(ctx context.Context, want int) (at []time.Time, err error) {
	seen := map[string]bool{}
	err = f.watch(ctx, func(s *corev1.Service) bool {
		if len(testbed.Addresses(s)) > 0 && !seen[s.Name] {
			seen[s.Name] = true
			at = append(at, time.Now())
		}
		return len(at) >= want
	})
	if err != nil {
		err = fmt.Errorf("wait for addresses, %d of %d are there: %w", len(at), want, err)
	}

	return at, err
}

// waitAnnounced waits until so many Services have the condition that their address is announced.
func (f fleet) waitAnnounced(ctx context.Context, want int) error {
	seen := map[string]bool{}
	err := f.watch(ctx, func(s *corev1.Service) bool {
		if meta.IsStatusConditionTrue(s.Status.Conditions, v1beta1.ConditionAnnouncedL2) {
			seen[s.Name] = true
		}
		return len(seen) >= want
	})
	if err != nil {
		err = fmt.Errorf("wait for announcements, %d of %d are there: %w", len(seen), want, err)
	}

	return err
}

// waitCalm waits for the end of all writes to the Services: conditions follow the announcements later, and a speaker
// that leaves and returns causes two moves.
func (f fleet) waitCalm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, scaleLimit)
	defer cancel()

	services := f.b.Kube.CoreV1().Services(app.Namespace)
	list, err := services.List(ctx, metav1.ListOptions{LabelSelector: scaleSelector, Limit: 1})
	if err != nil {
		return fmt.Errorf("list Services: %w", err)
	}

	changes, err := services.Watch(ctx, metav1.ListOptions{
		LabelSelector:   scaleSelector,
		ResourceVersion: list.ResourceVersion,
	})
	if err != nil {
		return fmt.Errorf("watch Services: %w", err)
	}
	defer changes.Stop()

	count := 0
	last := ""
	for {
		select {
		case e, isOpen := <-changes.ResultChan():
			if !isOpen {
				return fmt.Errorf(
					"the watch of Services ended before they were calm, after %d changes, the last one of %s: %w",
					count,
					last,
					ctx.Err(),
				)
			}

			count++
			s, ok := e.Object.(*corev1.Service)
			if ok && len(s.ManagedFields) > 0 {
				last = describeWriter(s)
			}
		case <-time.After(calmTime):
			return nil
		}
	}
}

// describeWriter returns the name of a Service, and the program that wrote it last.
func describeWriter(s *corev1.Service) string {
	newest := slices.MaxFunc(s.ManagedFields, func(a, b metav1.ManagedFieldsEntry) int {
		return a.Time.Compare(b.Time.Time)
	})
	return fmt.Sprintf("%s by %s", s.Name, newest.Manager)
}
