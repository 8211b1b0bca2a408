package config

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// fenced is a random cluster in small networks of both families, in which pools, pods, ClusterIPs and nodes meet.
type fenced struct {
	*rand.Rand
	t *testing.T
	Objects
	// made counts the objects, to name them.
	made int
}

// address returns a random address of one of 32.
func (f *fenced) address(ipv6 bool) string {
	if ipv6 {
		return fmt.Sprintf("fd00::%x", f.IntN(32))
	}
	return fmt.Sprintf("10.0.0.%d", f.IntN(32))
}

// prefix returns a random prefix in the same networks.
func (f *fenced) prefix(ipv6 bool) string {
	bits := 32 - f.IntN(5)
	if ipv6 {
		bits += 96
	}
	return netip.PrefixFrom(netip.MustParseAddr(f.address(ipv6)), bits).Masked().String()
}

func (f *fenced) name(kind string) string {
	f.made++
	return fmt.Sprintf("%s%02d", kind, f.made)
}

// change is one write of a tenant or of a node.
func (f *fenced) change() {
	ipv6 := f.IntN(2) == 0
	switch f.IntN(6) {
	case 0:
		f.Services = append(f.Services, plainService(f.name("plain"), f.address(ipv6), f.address(ipv6), f.address(ipv6)))
	case 1:
		s := services(1)[0]
		s.Name = f.name("ours")
		s.UID, s.Spec.ClusterIP = "uid-"+s.UID, f.address(ipv6)
		s.Spec.Ports = []corev1.ServicePort{{Port: int32(80 + f.IntN(2))}}
		if f.IntN(3) == 0 {
			s.Annotations[AnnotationAddresses] = f.address(ipv6)
		}
		f.Services = append(f.Services, s)
	case 2:
		if len(f.Services) > 0 {
			i := f.IntN(len(f.Services))
			s := f.Services[i].DeepCopy()
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, f.address(ipv6))
			f.Services = slices.Clone(f.Services)
			f.Services[i] = s
		}
	case 3:
		f.Nodes = append(slices.Clone(f.Nodes), podNode(f.name("w"), f.address(ipv6), f.prefix(false), f.prefix(true)))
	case 4:
		if len(f.Services) > 0 {
			i := f.IntN(len(f.Services))
			f.Services = slices.Delete(slices.Clone(f.Services), i, i+1)
		}
	case 5:
		slice := sliceObject(f.name("slice"), endpointOf("w1", f.address(ipv6)))
		f.EndpointSlices = append(slices.Clone(f.EndpointSlices), slice)
	}
}

// work makes the controller decide and write.
func (f *fenced) work() {
	s, _ := Compile(f.Objects, Options{Default: true})
	s.Now = time.Unix(1e9, 0)
	for i, a := range ipam.Assign(s).Assignments {
		f.fresh(&s, s.Services[i], a)
		at := slices.IndexFunc(f.Services, func(o *corev1.Service) bool { return KeyOf(o) == a.Key })
		o := f.Services[at].DeepCopy()
		o.Status.LoadBalancer.Ingress = nil
		for _, addr := range a.Addresses {
			having(addr.String())(o)
		}
		f.Services = slices.Clone(f.Services)
		f.Services[at] = o
	}
	pools := make([]*v1beta1.IPAddressPool, 0, len(f.Pools))
	for _, p := range f.Pools {
		pools = append(pools, written(f.Objects, p.Name))
	}
	f.Pools = pools
}

// fresh fails the test if a Service gets an address that belongs to the cluster.
func (f *fenced) fresh(s *lb.State, svc *lb.Service, a *ipam.Assignment) {
	for _, addr := range a.Addresses {
		if slices.Contains(svc.Addresses, addr) {
			continue
		}
		for _, c := range f.ServiceCIDRs {
			if slices.ContainsFunc(c.CIDRs, func(p netip.Prefix) bool { return p.Contains(addr) }) {
				f.t.Errorf("%s gets %s of a ServiceCIDR", a.Key, addr)
			}
		}
		for _, o := range f.Services {
			if o.Spec.ClusterIP == addr.String() {
				f.t.Errorf("%s gets %s, the ClusterIP of %s", a.Key, addr, o.Name)
			}
		}
		for _, n := range s.Nodes {
			if slices.Contains(n.Addresses, addr) {
				f.t.Errorf("%s gets %s of node %s", a.Key, addr, n.Name)
			}
		}
		for _, p := range f.Pools {
			if slices.ContainsFunc(p.Status.ExternalIPs, func(e v1beta1.ExternalAddress) bool {
				owner := slices.IndexFunc(f.Services, func(o *corev1.Service) bool { return KeyOf(o).String() == e.Service })
				return e.Address == addr.String() && owner >= 0 && slices.Contains(f.Services[owner].Spec.ExternalIPs, e.Address)
			}) {
				f.t.Errorf("%s gets %s, which another Service had before the pool", a.Key, addr)
			}
		}
	}
}

// closed returns the addresses that a node closes, except for declared ports.
func (f *fenced) closed() map[netip.Addr]bool {
	s, _ := Compile(f.Objects, Options{Default: true, ForSpeaker: true})
	s.Now, s.Members = time.Unix(1e9, 0), map[string]bool{"w1": true}
	p := plan.ForNode("w1", s)
	out := map[netip.Addr]bool{}
	for _, r := range p.Filter.Guarded {
		for a := r.From; r.Contains(a); a = a.Next() {
			out[a] = true
		}
	}
	for a, list := range p.Filter.Frontends.All() {
		for _, fe := range *list {
			held := slices.ContainsFunc(f.Services, func(o *corev1.Service) bool {
				return o.Spec.Type == corev1.ServiceTypeLoadBalancer && slices.Contains(StatusAddresses(o), a) &&
					o.Spec.Ports[0].Port == int32(fe.Port)
			})
			if !held {
				f.t.Errorf("port %d of %s is open, which no Service of ours declares", fe.Port, a)
			}
		}
	}
	return out
}

// TestFence: whatever tenants and nodes write, they open no closed address of a pool, and no Service gets an address
// that belongs to the cluster.
func TestFence(t *testing.T) {
	for seed := range uint64(150) {
		f := &fenced{Rand: rand.New(rand.NewPCG(seed, 5)), t: t}
		for range 6 {
			f.change()
		}
		if f.IntN(2) == 0 {
			f.ServiceCIDRs = []ServiceCIDR{serviceCIDR("kubernetes", f.prefix(false), f.prefix(true))}
		}
		for i := range 1 + f.IntN(2) {
			entries := []string{f.prefix(false), f.prefix(true), f.address(i == 0)}
			f.Pools = append(f.Pools, poolObject(fmt.Sprintf("p%d", i), int64(i), entries...))
		}
		f.work()
		closed := f.closed()
		for step := range 12 {
			f.change()
			if f.IntN(2) == 0 {
				f.work()
			}
			closedAfter := f.closed()
			for a := range closed {
				if !closedAfter[a] {
					t.Fatalf("seed %d step %d: a write opens %s", seed, step, a)
				}
			}
			closed = closedAfter
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func endpointOf(node, address string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{NodeName: &node, Addresses: []string{address}}
}
