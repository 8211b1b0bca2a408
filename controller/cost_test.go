package main

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// settledSyncer returns a syncer with so many Services and Nodes, of which nothing is left to write.
func settledSyncer(t testing.TB, services, nodes int) (*syncer, *apiServer) {
	t.Helper()
	_, measures := t.(*testing.B)
	server := newServer(t)
	server.live = measures
	pool := lan()
	pool.Spec.Addresses = []string{"10.0.0.0/16"}
	server.put(t, pool)
	for i := range nodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("n%04d", i), Labels: map[string]string{corev1.LabelHostname: fmt.Sprint(i)},
		}}
		n.Status.Addresses = []corev1.NodeAddress{{
			Type: corev1.NodeInternalIP, Address: fmt.Sprintf("172.30.%d.%d", i/250, 1+i%250),
		}}
		server.put(t, n)
	}
	for i := range services {
		server.put(t, loadBalancer(fmt.Sprintf("s%05d", i)))
	}
	syncOnce(t, newTestSyncer(t, server))
	s := newTestSyncer(t, server)
	for range 2 { // first the pool
		s.poolsWritten = time.Time{}
		syncOnce(t, s)
	}
	server.landed()
	return s, server
}

// BenchmarkRun is a run in which nothing changed, one Service did or there is one more, which gets its address: that is
// written and comes back. cpu-ms is the processor time of this process only.
func BenchmarkRun(b *testing.B) {
	for _, n := range []int{1_000, 3_000, 10_000} {
		s, server := settledSyncer(b, n, 1_000)
		more := n
		for name, change := range map[string]func(i int) error{
			"nothing": func(int) error { return nil },
			"one": func(i int) error {
				key := lb.Key{Namespace: "default", Name: fmt.Sprintf("s%05d", i*7919%n)}
				changed := k8s.ServiceUpdate{
					Service: s.cluster.Services().Of(key), Annotations: map[string]string{"n": fmt.Sprint(i)},
				}
				_, err := s.cluster.UpdateService(b.Context(), changed)
				return err
			},
			"more": func(int) error {
				server.put(b, loadBalancer(fmt.Sprintf("s%05d", more)))
				for more++; s.cluster.Services().Len() < more; {
					runtime.Gosched()
				}
				return nil
			},
		} {
			b.Run(fmt.Sprint(n, "/", name), func(b *testing.B) {
				var used time.Duration
				for i := 0; b.Loop(); i++ {
					must(b, change(i))
					before := processorTime(b)
					syncOnce(b, s)
					used += processorTime(b) - before
				}
				b.ReportMetric(float64(used)/float64(b.N)/1e6, "cpu-ms/op")
			})
		}
	}
}

// BenchmarkProxied decides about proxies if one of 10,000 Services is proxied and another one changed.
func BenchmarkProxied(b *testing.B) {
	var state lb.State
	var assigned []*ipam.Assignment
	for i := range 10_000 {
		address := netip.AddrFrom4([4]byte{10, 0, byte(i / 250), byte(i % 250)})
		s := &lb.Service{Key: lb.Key{Name: fmt.Sprintf("s%05d", i)}, Addresses: []netip.Addr{address}}
		s.Proxied, s.AsksProxy = i == 0, i == 0
		state.Services = append(state.Services, s)
		assigned = append(assigned, &ipam.Assignment{Key: s.Key, Addresses: []netip.Addr{address}})
	}
	var p proxyView
	p.decide(state, assigned)
	b.ReportAllocs()
	for b.Loop() {
		state.Services = slices.Clone(state.Services)
		state.Services[1] = new(*state.Services[1])
		if c := p.decide(state, assigned); c[0].Status != metav1.ConditionTrue || c[1].Status != "" {
			b.Fatalf("conditions are %+v", c[:2])
		}
	}
}

func processorTime(b *testing.B) time.Duration {
	var u unix.Rusage
	must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
