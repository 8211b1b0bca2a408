package config

import (
	"fmt"
	"runtime"
	"strings"
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
	speaker := served()
	speaker.ForSpeaker = true
	ownID := func(i int, o *corev1.Service) { o.Annotations[openstack.ID] = string(o.UID) }
	sharedID := func(i int, o *corev1.Service) { o.Annotations[openstack.ID] = fmt.Sprint("uid-", i-i%2) }
	for _, bb := range []struct {
		name     string
		options  Options
		annotate func(i int, o *corev1.Service)
	}{
		{"Plain", served(), nil},
		{"OwnID", served(), ownID},
		{"Shared", served(), sharedID},
		{"Speaker", speaker, nil},
		{"SpeakerShared", speaker, sharedID},
	} {
		b.Run(bb.name, func(b *testing.B) {
			town := newTown(bb.annotate)
			town.first(b, bb.options)
			town.changes(b, bb.options)
		})
	}
}

// BenchmarkEndpoint reads a change of an endpoint: of a Service with as many source ranges as are read, and among
// 10,000 Services of which another one is proxied.
func BenchmarkEndpoint(b *testing.B) {
	speaker := served()
	speaker.ForSpeaker = true
	for _, bb := range []struct {
		name    string
		options Options
		town    *town
		service int
	}{
		{"Ranges", speaker, rangedTown(), 0},
		{"RangesController", served(), rangedTown(), 0},
		{"Proxied", withProxies(), newTown(firstProxied), 1},
	} {
		b.Run(bb.name, func(b *testing.B) {
			var c Compiler
			c.Compile(bb.town.Objects, bb.options)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				bb.town.putSlice(bb.service, i)
				c.Compile(bb.town.Objects, bb.options)
			}
		})
	}
}

// rangedTown is a single Service with as many source ranges as are read.
func rangedTown() *town {
	var ranges strings.Builder
	for i := range maxSources {
		fmt.Fprintf(&ranges, "172.%d.%d.%d/32,", 16+i/65536, i/256%256, i%256)
	}
	t := &town{annotate: func(_ int, o *corev1.Service) { annotated(AnnotationSourceRanges, ranges.String())(o) }}
	t.Pools = []*v1beta1.IPAddressPool{poolObject("p", 1, "10.0.0.0/16")}
	t.putNode(0, "a")
	t.putService(0)
	return t
}

// firstProxied makes the first Service a proxied one.
func firstProxied(i int, o *corev1.Service) {
	if i == 0 {
		annotated(ownPrefix+"data-path", "Proxy")(o)
		proxiedStatus(o)
	}
}

// town is a large cluster.
type town struct {
	Objects
	annotate func(i int, o *corev1.Service)
}

const townServices, townNodes = 10_000, 1000

func newTown(annotate func(i int, o *corev1.Service)) *town {
	t := &town{annotate: annotate}
	t.Pools = []*v1beta1.IPAddressPool{poolObject("p", 1, "10.0.0.0/16")}
	for i := range townNodes {
		t.putNode(i, "a")
	}
	for i := range townServices {
		t.putService(i)
		t.putSlice(i, i)
	}
	return t
}

// putSlice puts the endpoint of a Service on a node.
func (t *town) putSlice(i, node int) {
	name := fmt.Sprintf("n%04d", node%townNodes)
	e := discoveryv1.Endpoint{Addresses: []string{"10.244.0.1"}, NodeName: &name}
	s := sliceObject(fmt.Sprintf("s%05d", i), e)
	t.SlicesByKey = t.SlicesByKey.Put(lb.Key{Namespace: s.Namespace, Name: s.Name}, s)
}

func (t *town) putNode(i int, label string) {
	n := nodeObject(fmt.Sprintf("n%04d", i), label, fmt.Sprintf("172.30.%d.%d", i/250, 1+i%250))
	t.NodesByKey = t.NodesByKey.Put(KeyOf(n), n)
}

func (t *town) putService(i int) {
	s := serviceObject(fmt.Sprintf("s%05d", i), having(fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)))
	s.UID = types.UID(fmt.Sprint("uid-", i))
	if t.annotate != nil {
		t.annotate(i, s)
	}
	t.ServicesByKey = t.ServicesByKey.Put(KeyOf(s), s)
}

// first measures the first run, and what a Compiler keeps after it.
func (t *town) first(b *testing.B, options Options) {
	b.Run("First", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Compile(t.Objects, options)
		}
	})
	b.Run("Kept", func(b *testing.B) {
		var kept uint64
		for b.Loop() {
			var c Compiler
			before := heapInUse()
			state, _ := c.Compile(t.Objects, options)
			kept = heapInUse() - before
			runtime.KeepAlive(&c)
			runtime.KeepAlive(state)
		}
		b.ReportMetric(float64(kept)/(1<<20), "MiB")
	})
}

// heapInUse returns the size of all objects that are in use.
func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// changes measures runs after a change of one object, and how many Services of the State are other pointers then.
func (t *town) changes(b *testing.B, options Options) {
	var c Compiler
	state, _ := c.Compile(t.Objects, options)
	last := state.Services
	for _, bb := range []struct {
		name   string
		change func(i int)
	}{
		{"Nothing", func(int) {}},
		{"Slice", func(i int) { t.putSlice(i%townServices, i+1) }},
		{"Heartbeat", func(i int) { t.putNode(i%townNodes, "a") }},
		{"Label", func(i int) { t.putNode(7, fmt.Sprint(i%2)) }},
		{"Service", func(i int) { t.putService(i % townServices) }},
		{"Added", func(i int) {
			if i%2 == 0 {
				t.putService(townServices)
			} else {
				last := lb.Key{Namespace: "default", Name: fmt.Sprintf("s%05d", townServices)}
				t.ServicesByKey = t.ServicesByKey.Without(last)
			}
		}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			made := 0
			for i := 0; b.Loop(); i++ {
				bb.change(i)
				state, _ := c.Compile(t.Objects, options)
				lb.Changes(last, state.Services, func(_, _ *lb.Service, _, _ int) { made++ })
				last = state.Services
			}
			b.ReportMetric(float64(made)/float64(b.N), "new/op")
		})
	}
}
