//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/testbed"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// burstSize is the number of Services that writers create in parallel during a fault.
const (
	burstSize = 200
	writers   = 8
)

// testLeaderKilled kills the leading controller while Services are being created.
func testLeaderKilled(t *testing.T, e *env) {
	e.burst(t, func() { e.killLeader(t) })
	e.newLeader(t)
	must(t, e.WaitReady(t.Context()))
}

// testAPIServerKilled kills the API server while Services are being created. The control plane's
// node restarts it.
func testAPIServerKilled(t *testing.T, e *env) {
	e.burst(t, func() {
		_, err := e.On(t.Context(), e.Cluster.Nodes()[0], "pkill", "-KILL", "-x", "kube-apiserver")
		must(t, err)
	})
	must(t, e.WaitReady(t.Context()))
}

// killLeader kills the leading controller with SIGKILL.
func (e *env) killLeader(t *testing.T) {
	t.Helper()
	leader, err := e.leader(t.Context())
	must(t, err)
	must(t, e.Kube.CoreV1().Pods(testbed.Namespace).Delete(t.Context(), leader, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
}

// newLeader waits until an existing pod holds the leader Lease.
func (e *env) newLeader(t *testing.T) {
	t.Helper()
	must(t, testbed.Until(t.Context(), time.Minute, "a leader that lives", func(ctx context.Context) error {
		leader, err := e.leader(ctx)
		if err != nil {
			return err
		}
		_, err = e.Kube.CoreV1().Pods(testbed.Namespace).Get(ctx, leader, metav1.GetOptions{})
		return err
	}))
}

// burst creates Services, calls happen when half of them exist, and checks that each
// gets an address of its own.
func (e *env) burst(t *testing.T, happen func()) {
	ns := e.namespace(t)
	name := "e2e-burst"
	e.pool(t, name, `addresses: [10.151.0.0/16]`)
	t.Cleanup(func() { e.clear(t, ns) })
	half, made := make(chan struct{}), make(chan error, 1)
	var group errgroup.Group
	group.SetLimit(writers)
	begin := time.Now()
	go func() {
		for i := range burstSize {
			if i == burstSize/2 {
				close(half)
			}
			group.Go(func() error { return e.persist(t.Context(), ns, fmt.Sprintf("burst-%03d", i), pool(name)) })
		}
		err := group.Wait()
		t.Logf("%d Services were created within %s", burstSize, since(begin))
		made <- err
	}()
	<-half
	start := time.Now()
	happen()
	must(t, testbed.Until(t.Context(), 2*time.Minute, "addresses of all Services", func(ctx context.Context) error {
		list, err := e.Kube.CoreV1().Services(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		lacking, shared := distinct(list.Items)
		if shared != nil {
			t.Fatal(shared) // a temporary duplicate is a failure too
		}
		return lacking
	}))
	t.Logf("all %d Services have an address of their own %s after the fault", burstSize, since(start))
	must(t, <-made)
}

// persist creates a Service and retries until the API server has accepted it.
func (e *env) persist(ctx context.Context, ns, name string, changes ...change) error {
	s := testbed.Service(e.in(ns), name)
	all(append(changes, one(80))...)(s)
	return testbed.Until(ctx, time.Minute, "creation of "+name, func(ctx context.Context) error {
		_, err := e.Kube.CoreV1().Services(ns).Create(ctx, s, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // an earlier attempt succeeded, but its response was lost
		}
		return err
	})
}

// distinct reports how many Services have no address yet, and two Services with the same address.
func distinct(services []corev1.Service) (lacking, shared error) {
	holders := map[netip.Addr]string{}
	for i := range services {
		for _, a := range testbed.Addresses(&services[i]) {
			if other, taken := holders[a]; taken {
				return nil, fmt.Errorf("%s is held by %s and %s", a, other, services[i].Name)
			}
			holders[a] = services[i].Name
		}
	}
	if len(holders) != burstSize || len(services) != burstSize {
		return fmt.Errorf("%d of %d Services have one", len(holders), len(services)), nil
	}
	return nil, nil
}

// clear deletes all Services of a namespace and waits for the end of the deletion.
func (e *env) clear(t *testing.T, ns string) {
	ctx := context.Background() // t.Context() is cancelled during cleanup
	start := time.Now()
	defer func() { t.Logf("the Services were deleted within %s", since(start)) }()
	services := e.Kube.CoreV1().Services(ns)
	list, err := services.List(ctx, metav1.ListOptions{})
	errs := []error{err}
	var group errgroup.Group
	group.SetLimit(writers)
	if err == nil {
		for i := range list.Items {
			group.Go(func() error { return services.Delete(ctx, list.Items[i].Name, metav1.DeleteOptions{}) })
		}
	}
	errs = append(errs, group.Wait(), testbed.Until(ctx, time.Minute, "the end of all Services", func(ctx context.Context) error {
		list, err := services.List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are left", len(list.Items))
		}
		return err
	}))
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}
