package config

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
)

// BenchmarkCompiler reads a change of one object among 10,000 Services, their EndpointSlices, and 1,000 nodes: Services
// that depend on nothing else, have OpenStack's load-balancer id, or share the load balancer of another one by twos.
func BenchmarkCompiler(b *testing.B) {
	b.Run("Plain", func(b *testing.B) { benchmarkCompiler(b, nil) })
	b.Run("OwnID", func(b *testing.B) {
		benchmarkCompiler(b, func(i int, o *corev1.Service) { o.Annotations[openstack.ID] = string(o.UID) })
	})
	b.Run("Shared", func(b *testing.B) {
		benchmarkCompiler(b, func(i int, o *corev1.Service) { o.Annotations[openstack.ID] = fmt.Sprint("uid-", i-i%2) })
	})
}

func benchmarkCompiler(b *testing.B, annotate func(i int, o *corev1.Service)) {
	o := Objects{Pools: []*v1beta1.IPAddressPool{poolObject("p", 1, "10.0.0.0/16")}}
	slice := func(i, node int) *discoveryv1.EndpointSlice {
		return sliceObject(fmt.Sprintf("s%05d", i),
			discoveryv1.Endpoint{Addresses: []string{"10.244.0.1"}, NodeName: new(fmt.Sprintf("n%04d", node%1000))})
	}
	put := func(s *discoveryv1.EndpointSlice) {
		o.HeldSlices = o.HeldSlices.Put(lb.Key{Namespace: s.Namespace, Name: s.Name}, heldSlice{s})
	}
	node := func(i int) *corev1.Node {
		return nodeObject(fmt.Sprintf("n%04d", i), "a", fmt.Sprintf("172.30.%d.%d", i/250, 1+i%250))
	}
	for i := range 1000 {
		o.HeldNodes = o.HeldNodes.Put(KeyOf(node(i)), node(i))
	}
	for i := range 10_000 {
		s := serviceObject(fmt.Sprintf("s%05d", i), having(fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)))
		s.UID = types.UID(fmt.Sprint("uid-", i))
		if annotate != nil {
			annotate(i, s)
		}
		o.HeldServices = o.HeldServices.Put(KeyOf(s), heldService{s})
		put(slice(i, i))
	}
	var c Compiler
	c.Compile(o, served())
	for name, change := range map[string]func(i int){
		"Slice": func(i int) {
			put(slice(i%10_000, i))
		},
		"Heartbeat": func(i int) { o.HeldNodes = o.HeldNodes.Put(KeyOf(node(i%1000)), node(i%1000)) },
		"Service": func(i int) {
			name := lb.Key{Namespace: "default", Name: fmt.Sprintf("s%05d", i%10_000)}
			o.HeldServices = o.HeldServices.Put(name, heldService{o.HeldServices.Of(name).Read().DeepCopy()})
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			before, made := c.last, 0
			for i := 0; b.Loop(); i++ {
				change(i)
				state, _ := c.Compile(o, served())
				for i, s := range state.Services {
					if s != before[i] {
						made++
					}
				}
				before = state.Services
			}
			b.ReportMetric(float64(made)/float64(b.N), "new/op")
		})
	}
}
