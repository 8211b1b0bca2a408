package config

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
)

// maxEgress bounds the Services of a namespace with egress: each of its pods is compared with each of them.
const maxEgress = 64

// AsksEgress reports whether a Service asks that its pods send from its addresses.
func AsksEgress(o *corev1.Service) bool {
	return o.Spec.Type == corev1.ServiceTypeLoadBalancer && o.Annotations[AnnotationEgress] == "true"
}

// readEgress reads whether the pods of a Service send from its addresses.
func (x serviceReader) readEgress(r *problemList, object lb.Object, o *corev1.Service, s *lb.Service) {
	value := o.Annotations[AnnotationEgress]
	labels := len(o.Spec.Selector)
	switch {
	case value == "" || value == "false":
	case value != "true":
		r.add(object, lb.InvalidRequest, `annotation %s is %q, neither "true" nor "false"`, AnnotationEgress, value)
	case x.OtherDataPath:
		r.add(object, lb.EgressUnavailable,
			"nodes translate nothing where another program than kube-proxy delivers packets (dataPath: Other)")
	case labels == 0:
		r.add(object, lb.EgressUnavailable, "the Service has no pods, since it has no spec.selector")
	case labels > maxSelectorTerms:
		r.add(object, lb.EgressUnavailable, "spec.selector has %d labels, and at most %d are allowed",
			labels, maxSelectorTerms)
	default:
		s.Egress = true
	}
}

// limitEgress removes egress from the Services of one namespace beyond maxEgress. The oldest Services come first.
func limitEgress(r *problemList, services []*lb.Service) {
	var list []*lb.Service
	for _, s := range services {
		if s.Egress {
			list = append(list, s)
		}
	}

	slices.SortFunc(list, compareAge)
	for _, old := range list[maxEgress:] {
		r.add(ServiceObject(old.Key), lb.EgressUnavailable,
			"more than %d Services of the namespace have annotation %s, and only the oldest are served",
			maxEgress, AnnotationEgress)
		replaceService(services, old, func(s *lb.Service) {
			s.Egress = false
		})
	}
}

// AllocationName returns the name of the EgressAllocation of an address: the address itself, with IPv6 in full and
// with hyphens for the colons.
func AllocationName(a netip.Addr) string {
	return strings.ReplaceAll(a.StringExpanded(), ":", "-")
}

// AllocationAddress returns the address of the EgressAllocation of a name. It returns false for a name that
// AllocationName does not return.
func AllocationAddress(name string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(strings.ReplaceAll(name, "-", ":"))
	if err != nil || a.Is4In6() || a.Zone() != "" {
		return netip.Addr{}, false
	}
	if AllocationName(a) != name {
		return netip.Addr{}, false
	}

	return a, true
}

// egressSlices are the slices of all EgressAllocations that can be used, ordered.
type egressSlices struct {
	slices   []lb.PortSlice
	problems []*lb.Problem
}

// readAllocations returns the slices of all EgressAllocations that can be used.
func (c *Compiler) readAllocations(r *problemList, objects []*v1beta1.EgressAllocation) []lb.PortSlice {
	read := remember(&c.allocations, objects, lb.Same[*v1beta1.EgressAllocation], compileAllSlices, nil)
	r.list = append(r.list, read.problems...)
	return read.slices
}

// compileAllSlices reads EgressAllocations.
func compileAllSlices(objects []*v1beta1.EgressAllocation) (out egressSlices) {
	var problems problemList
	for _, o := range objects {
		out.slices = append(out.slices, compileSlices(&problems, o)...)
	}

	slices.SortFunc(out.slices, lb.PortSlice.Compare)
	out.problems = problems.list
	return out
}

// compileSlices returns the slices of an EgressAllocation that can be used: aligned, and each once.
func compileSlices(r *problemList, o *v1beta1.EgressAllocation) (out []lb.PortSlice) {
	object := lb.Object{Kind: KindAllocation, Name: o.Name}
	a, ok := AllocationAddress(o.Name)
	if !ok {
		v4 := AllocationName(netip.MustParseAddr("192.0.2.7"))
		v6 := AllocationName(netip.MustParseAddr("2001:db8::7"))
		r.add(object, lb.InvalidSlice, "its name is not an address in the form of %s or %s", v4, v6)
		return nil
	}

	for i, slice := range o.Status.Slices {
		isInRange := slice.First >= lb.SlicePorts && slice.First <= math.MaxUint16
		isAligned := slice.First%lb.SlicePorts == 0
		hasSamePorts := func(s lb.PortSlice) bool { return int32(s.First) == slice.First }
		switch {
		case !isInRange || !isAligned:
			r.add(object, lb.InvalidSlice, "status.slices[%d].first is %d: not a multiple of %d from %d to 61440",
				i, slice.First, lb.SlicePorts, lb.SlicePorts)
		case slice.Node == "" || slice.Namespace == "":
			r.add(object, lb.InvalidSlice, "status.slices[%d] has no node or no namespace", i)
		case slices.ContainsFunc(out, hasSamePorts):
			r.add(object, lb.InvalidSlice, "status.slices[%d] has the ports of another slice", i)
		default:
			out = append(out, lb.PortSlice{
				Address:   a,
				First:     uint16(slice.First),
				Node:      slice.Node,
				Namespace: slice.Namespace,
				Released:  valueOr(slice.Released, v1beta1.Time{}).Time.Time,
			})
		}
	}

	return out
}

// podObjects are what the pods that may send from addresses of Services are read from.
type podObjects struct {
	pods []*corev1.Pod
	// namespaces has the namespaces of Services with egress.
	namespaces map[string]bool
}

// equal reports whether the pods are the same, and the namespaces equal.
func (p podObjects) equal(o podObjects) bool {
	return lb.Same(p.pods, o.pods) && maps.Equal(p.namespaces, o.namespaces)
}

// readPods returns the pods in the namespaces of Services with egress that have an address.
func (c *Compiler) readPods(objects []*corev1.Pod, services []*lb.Service) []lb.Pod {
	in := podObjects{pods: objects, namespaces: map[string]bool{}}
	for _, s := range services {
		if len(objects) > 0 && s.Sends() {
			in.namespaces[s.Key.Namespace] = true
		}
	}

	return remember(&c.pods, in, podObjects.equal, podObjects.compile, reuse)
}

// compile reads the pods.
func (p podObjects) compile() (out []lb.Pod) {
	for _, o := range p.pods {
		if !p.namespaces[o.Namespace] {
			continue
		}

		pod, ok := EgressPod(o)
		if ok {
			out = append(out, pod)
		}
	}

	slices.SortFunc(out, func(a, b lb.Pod) int {
		return a.Key.Compare(b.Key)
	})
	return out
}

// EgressPod returns a pod that may send from an address of a Service. It returns false for a pod that has no node, that
// has ended, or that sends from the node's own addresses. A pod that is being deleted sends until it is gone.
func EgressPod(o *corev1.Pod) (lb.Pod, bool) {
	hasEnded := o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed
	if o.Spec.NodeName == "" || o.Spec.HostNetwork || hasEnded {
		return lb.Pod{}, false
	}

	p := lb.Pod{
		Key:    KeyOf(o),
		UID:    string(o.UID),
		Node:   o.Spec.NodeName,
		Labels: o.Labels,
	}
	for _, ip := range o.Status.PodIPs {
		a, err := parseAddr(ip.IP)
		if err != nil {
			continue
		}

		isSameFamily := func(b netip.Addr) bool { return a.BitLen() == b.BitLen() }
		if !slices.ContainsFunc(p.Addresses, isSameFamily) {
			p.Addresses = append(p.Addresses, a)
		}
	}

	return p, true
}
