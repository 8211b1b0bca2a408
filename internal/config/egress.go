package config

import (
	"maps"
	"math"
	"net/netip"
	"reflect"
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

// limitEgress returns the Services without egress beyond maxEgress in each namespace. The oldest Services come first.
func (c *Compiler) limitEgress(r *problemList, services []*lb.Service) []*lb.Service {
	if len(c.withEgress) <= maxEgress {
		return services
	}

	byNamespace := map[string][]*lb.Service{}
	for _, s := range services {
		namespace := s.Key.Namespace
		if s.Egress {
			byNamespace[namespace] = append(byNamespace[namespace], s)
		}
	}

	out := services
	for _, list := range byNamespace {
		if len(list) <= maxEgress {
			continue
		}

		if lb.Same(out, services) {
			out = slices.Clone(services)
		}

		slices.SortFunc(list, compareAge)
		for _, old := range list[maxEgress:] {
			r.add(ServiceObject(old.Key), lb.EgressUnavailable,
				"more than %d Services of the namespace have annotation %s, and only the oldest are served",
				maxEgress, AnnotationEgress)
			replaceService(out, old, func(s *lb.Service) {
				s.Egress = false
			})
		}
	}

	return out
}

// replaceService replaces a Service in a list, which is ordered by key, by a changed copy.
func replaceService(list []*lb.Service, old *lb.Service, change func(*lb.Service)) {
	s := *old // old is needed for the next run
	change(&s)
	i, _ := slices.BinarySearchFunc(list, s.Key, compareKey)
	list[i] = &s
}

// egressRead is what a run read of egress. It is read again only if it changed.
type egressRead struct {
	// allocations are the objects that slices and problems were read from.
	allocations []*v1beta1.EgressAllocation
	slices      []lb.PortSlice
	problems    []*lb.Problem

	// objects are the objects that pods were read from.
	objects []*corev1.Pod
	// namespaces has the namespaces of Services with egress.
	namespaces map[string]bool
	pods       []lb.Pod
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

// readSlices returns the slices of all EgressAllocations that can be used.
func (e *egressRead) readSlices(r *problemList, objects []*v1beta1.EgressAllocation) []lb.PortSlice {
	if !lb.Same(e.allocations, objects) {
		var problems problemList
		var all []lb.PortSlice
		for _, o := range objects {
			all = append(all, compileSlices(&problems, o)...)
		}

		slices.SortFunc(all, lb.PortSlice.Compare)

		e.allocations = objects
		e.slices = all
		e.problems = problems.list
	}

	r.list = append(r.list, e.problems...)
	return e.slices
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

// readPods returns the pods in the namespaces of Services with egress that have an address. The result stays the same
// as long as the pods do.
func (e *egressRead) readPods(objects []*corev1.Pod, withEgress map[lb.Key]*compiledService) []lb.Pod {
	namespaces := map[string]bool{}
	for key, s := range withEgress {
		if s.service.Sends() {
			namespaces[key.Namespace] = true
		}
	}
	if lb.Same(e.objects, objects) && maps.Equal(e.namespaces, namespaces) {
		return e.pods
	}

	var pods []lb.Pod
	for _, o := range objects {
		if !namespaces[o.Namespace] {
			continue
		}

		p, ok := EgressPod(o)
		if ok {
			pods = append(pods, p)
		}
	}

	slices.SortFunc(pods, func(a, b lb.Pod) int {
		return a.Key.Compare(b.Key)
	})

	e.objects = objects
	e.namespaces = namespaces
	if !reflect.DeepEqual(e.pods, pods) {
		e.pods = pods
	}

	return e.pods
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
