package config

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
)

// village is a small cluster. Each step replaces an object, as an informer does.
type village struct {
	*rand.Rand
	Objects
	// plain reports whether objects are ordered, no Service depends on another one, and most changes are of endpoints.
	plain bool
}

func (v *village) name() string { return fmt.Sprintf("s%d", v.IntN(8)) }

// service returns a Service that may depend on every other object.
func (v *village) service(name string) *corev1.Service {
	o := serviceObject(name, func(o *corev1.Service) { o.UID = types.UID(fmt.Sprint(name, v.IntN(2))) })
	for i := range v.IntN(4) {
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Port: int32(8000 + i)})
	}
	if v.plain && v.IntN(20) > 0 {
		return o
	}
	for _, pair := range [][2]string{
		{AnnotationSharingKey, "k"}, {openstack.ID, fmt.Sprint(v.name(), v.IntN(2))},
		{openstack.Prefix + "floating-subnet", "~p[01]"},
		{openstack.Prefix + "floating-subnet-tags", "t1,t2"},
		{v1beta1.AnnotationAssigned, "for=default/" + v.name() + ",192.0.2.1=p0"}, {AnnotationAddresses, "?"},
		{AnnotationSourceRanges, "10.0.0.0/8,x"},
		{AnnotationEgress, "true"},
	} {
		if v.IntN(3) == 0 {
			o.Annotations[pair[0]] = pair[1]
		}
	}
	o.Spec.Selector = map[string]string{"app": fmt.Sprint(v.IntN(2))}
	if v.IntN(2) == 0 {
		having(fmt.Sprint("192.0.2.", 1+v.IntN(5)))(o)
	}
	switch v.IntN(8) {
	case 0:
		leaving(o)
	case 1:
		class("example.com/lb")(o)
	case 2:
		o.Spec.Type = corev1.ServiceTypeClusterIP
	}
	return o
}

func (v *village) pod() *corev1.Pod {
	return egressPod(v.name(), fmt.Sprint("n", v.IntN(3)), map[string]string{"app": fmt.Sprint(v.IntN(2))})
}

func (v *village) step() {
	which := v.IntN(8)
	if v.plain && (which == 2 || v.IntN(3) > 0) {
		which = 1
	}
	switch which {
	case 7:
		v.EgressPods = put(v, v.EgressPods, v.pod())
	case 6:
		o := allocation(fmt.Sprint("192.0.2.", 1+v.IntN(5)),
			v1beta1.EgressSlice{First: 4096 * int32(v.IntN(3)), Node: "n1", Namespace: "default"})
		v.EgressAllocations = put(v, v.EgressAllocations, o)
	case 5:
		v.Nodes = put(v, v.Nodes, nodeObject(fmt.Sprint("n", v.IntN(3)), "a", fmt.Sprint("192.0.2.", v.IntN(8))))
	case 0:
		p := poolObject(fmt.Sprint("p", v.IntN(3)), 1, "192.0.2.0/28")
		p.Spec.Tags, p.Spec.Aliases = []string{fmt.Sprint("t", v.IntN(4))}, []string{fmt.Sprint("p", v.IntN(3))}
		p.Status.Retained = []v1beta1.RetainedAddress{{Address: "192.0.2.2", Service: "default/" + v.name()}}
		v.Pools = put(v, v.Pools, p)
	case 1:
		e := sliceObject(v.name())
		e.Name = fmt.Sprint(v.IntN(12))
		for range v.IntN(3) {
			e.Endpoints = append(e.Endpoints, discoveryv1.Endpoint{NodeName: new(fmt.Sprint("n", v.IntN(3)))})
		}
		v.EndpointSlices = put(v, v.EndpointSlices, e)
	case 2:
		f := &v1beta1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: v.name()},
			Spec: v1beta1.FloatingIPSpec{ServiceName: v.name(), Addresses: []string{"192.0.2.3", "y"}[:1+v.IntN(2)]}}
		v.FloatingIPs = put(v, v.FloatingIPs, f)
	default:
		v.Services = put(v, v.Services, v.service(v.name()))
	}
}

// put returns the objects in random order, with an object replaced by the new one of its name, or without it.
func put[T metav1.Object](v *village, objects []T, o T) []T {
	var out []T
	for _, have := range objects {
		if have.GetName() != o.GetName() {
			out = append(out, have)
		}
	}
	if v.IntN(4) > 0 {
		out = append(out, o)
	}
	if v.plain {
		return slices.SortedFunc(slices.Values(out), func(a, b T) int { return strings.Compare(a.GetName(), b.GetName()) })
	}
	return shuffled(v.Rand, out)
}

// The results of a Compiler equal those that Compile returns, whatever it read before. Earlier results stay unchanged,
// and what is equal in the next one has the same pointer.
func TestCompilerHistory(t *testing.T) {
	options := served()
	options.MorePorts = 6
	for seed := range uint64(12) {
		options.ForSpeaker = seed >= 8
		v := village{Rand: rand.New(rand.NewPCG(seed, 0)), plain: seed%2 > 0}
		v.Nodes = []*corev1.Node{nodeObject("n1", "a", "172.30.0.11")}
		objects := func() Objects {
			o := v.Objects
			for _, s := range o.EndpointSlices {
				o.SlicesByKey = o.SlicesByKey.Put(lb.Key{Namespace: s.Namespace, Name: s.Name}, s)
			}
			if seed%4 > 1 {
				o.EndpointSlices = nil
			}
			return o
		}
		var c Compiler
		for step := range 100 {
			before, _ := c.Compile(objects(), options)
			want, _ := Compile(v.Objects, options)
			v.step()
			state, problems := c.Compile(objects(), options)
			fresh, freshProblems := Compile(v.Objects, options)
			if diff := cmp.Diff(fresh, state, addrs()); diff != "" {
				t.Fatalf("seed %d, step %d: -Compile +Compiler\n%s", seed, step, diff)
			}
			if diff := cmp.Diff(freshProblems, problems); diff != "" {
				t.Fatalf("seed %d, step %d: problems: -Compile +Compiler\n%s", seed, step, diff)
			}
			if diff := cmp.Diff(want, before, addrs()); diff != "" {
				t.Fatalf("seed %d, step %d changed an earlier result: -before +after\n%s", seed, step, diff)
			}
			lb.Changes(before.Services, state.Services, func(from, to *lb.Service, _, _ int) {
				if from != nil && to != nil && reflect.DeepEqual(from, to) {
					t.Fatalf("seed %d, step %d: %s is equal, and another pointer", seed, step, to.Key)
				}
			})
		}
		var other Compiler
		other.Compile(v.Objects, options)
		kept := func(c *Compiler) []int {
			return []int{
				c.nodes.Results().Len(), len(c.nodesByName), c.watched.Len(), c.objects.Len(), c.services.Results().Len(),
				c.slices.Results().Len(), len(c.last),
			}
		}
		if got, want := kept(&c), kept(&other); !slices.Equal(got, want) {
			t.Errorf("seed %d: it remembers %d, not %d", seed, got, want)
		}
	}
}

// A long part of one tenant's object is read once, and not again for each change of another object.
func TestObjectIsReadOnce(t *testing.T) {
	var o Objects
	o.Pools = poolsOfCloud()
	for i := range 50 {
		o.Services = append(o.Services, serviceObject(fmt.Sprintf("s%02d", i), asking(
			openstack.Prefix+"floating-subnet", fmt.Sprintf("~(%s|public-%d)", strings.Repeat("x?", 40), i),
			AnnotationSourceRanges, strings.Repeat("192.0.2.1/32,garbage,", 500),
		)))
	}
	var c Compiler
	change := func() {
		o.Services = slices.Clone(o.Services)
		o.Services[7] = o.Services[7].DeepCopy()
		c.Compile(o, served())
	}
	first := testing.AllocsPerRun(1, func() { Compile(o, served()) })
	if again := testing.AllocsPerRun(5, change); again > first/10 {
		t.Errorf("a change of one of 50 Services costs %.0f allocations, and all cost %.0f", again, first)
	}
}

// Unchanged Services have the same pointer in the next State. Only the Service of a changed EndpointSlice has another
// one.
func TestSameIsShared(t *testing.T) {
	var o Objects
	slice := func(i int, node string) *discoveryv1.EndpointSlice {
		return sliceObject(fmt.Sprintf("s%d", i), discoveryv1.Endpoint{NodeName: &node})
	}
	for i := range 3 {
		o.Services = append(o.Services, serviceObject(fmt.Sprintf("s%d", i)))
		o.EndpointSlices = append(o.EndpointSlices, slice(i, "n1"))
	}
	o.Nodes = []*corev1.Node{nodeObject("n1", "a", "172.30.0.11")}
	var c Compiler
	before, _ := c.Compile(o, served())
	o.EndpointSlices = slices.Clone(o.EndpointSlices)
	o.EndpointSlices[1] = slice(1, "n2")
	after, _ := c.Compile(o, served())
	for i, s := range after.Services {
		if same := s == before.Services[i]; same != (i != 1) {
			t.Errorf("%s is the same: %t", s.Key, same)
		}
	}
	if s := after.Services[1]; !s.Backends.Nodes.Has("n2") || before.Services[1].Backends.Nodes.Has("n2") {
		t.Errorf("%s has endpoints on %v", s.Key, s.Backends.Nodes)
	}
	key := after.Services[1].Key
	fresh := map[lb.Key][]netip.Addr{
		key: {netip.MustParseAddr("192.0.2.1")}, {Name: "none"}: {netip.MustParseAddr("192.0.2.2")},
	}
	for _, address := range []string{"10.0.0.1", "10.0.0.2"} { // as read, and changed
		o.EndpointSlices = slices.Clone(o.EndpointSlices)
		o.EndpointSlices[1] = slice(1, "n2")
		o.EndpointSlices[1].AddressType = discoveryv1.AddressTypeIPv4
		o.EndpointSlices[1].Ports = []discoveryv1.EndpointPort{{Port: new(int32(80))}}
		o.EndpointSlices[1].Endpoints[0].Addresses = []string{address}
		after, _ = c.Compile(o, served())
		first, again := c.Starts(fresh, "n2"), c.Starts(fresh, "n2")
		differs := len(first) != 1 || first[0].Service != key || first[0].Endpoints[0].Addr().String() != address ||
			&again[0].Endpoints[0] != &first[0].Endpoints[0]
		if differs {
			t.Errorf("connections to a new address go to %v, and then to %v", first, again)
		}
	}
	fresh[key] = append(fresh[key], netip.MustParseAddr("192.0.2.3"))
	if starts := c.Starts(fresh, "n2"); len(starts) != 2 {
		t.Errorf("connections to two new addresses go to %v", starts)
	}
	if starts := c.Starts(nil, "n2"); len(starts) > 0 || c.starts.Of(key) != nil {
		t.Errorf("%v and %v are kept though nothing is new", starts, c.starts.Of(key))
	}
	o.Pools = []*v1beta1.IPAddressPool{{}}
	if last, _ := c.Compile(o, served()); !slices.Equal(last.Services, after.Services) {
		t.Error("the Services were read again")
	}
	if reflect.ValueOf(before.Nodes).UnsafePointer() != reflect.ValueOf(after.Nodes).UnsafePointer() {
		t.Error("the nodes were read again")
	}
}

// TestRangesAreShared: the source ranges of a Service stay the same lists if its endpoints change, or its object in
// other respects. Changes of endpoints do not make the Compiler read them again.
func TestRangesAreShared(t *testing.T) {
	ranges := strings.Repeat("192.0.2.1/32, 198.51.100.0/24, garbage,", 500)
	access := asking(AnnotationSourceRanges, ranges, AnnotationSourceRangesDeny, "203.0.113.0/24")
	o := Objects{Services: []*corev1.Service{
		serviceObject("stays", access),
		serviceObject("leaves", access, leaving, having("192.0.2.9")),
	}}
	var c Compiler
	last, _ := c.Compile(o, served())
	check := func(what string, s *lb.Service, before lb.Access, node string) {
		t.Helper()
		isSame := lb.Same(s.Allow, before.Allow) && lb.Same(s.Deny, before.Deny)
		if len(s.Allow) != 2 || len(s.Deny) != 1 || !isSame || !s.Backends.Nodes.Has(node) {
			t.Errorf("%s: %s is the same: %t, with %v, endpoints on %v", what, s.Key, isSame, s.Access, s.Backends.Nodes)
		}
	}
	setNode := func(node string) {
		e := discoveryv1.Endpoint{NodeName: &node}
		o.EndpointSlices = []*discoveryv1.EndpointSlice{sliceObject("stays", e), sliceObject("leaves", e)}
	}
	setNode("n1")
	state, _ := c.Compile(o, served())
	check("other endpoints", state.Services[0], last.Services[0].Access, "n1")
	check("other endpoints", state.Leaving[0].Served, last.Leaving[0].Served.Access, "n1")

	o.Services = slices.Clone(o.Services)
	o.Services[0] = serviceObject("stays", access, having("192.0.2.8"))
	state, _ = c.Compile(o, served())
	check("another address", state.Services[0], last.Services[0].Access, "n1")

	first := testing.AllocsPerRun(1, func() { Compile(o, served()) })
	i := 0
	again := testing.AllocsPerRun(5, func() {
		i++
		setNode(fmt.Sprint("n", i))
		c.Compile(o, served())
	})
	if again > first/10 {
		t.Errorf("a change of endpoints costs %.0f allocations, and the Services cost %.0f", again, first)
	}
}

// TestSharersOfProxied: a Service that shares its address is proxied only while its sharers are, whatever was read
// before. The sharing groups of others stay the same, and none is kept once no Service is proxied.
func TestSharersOfProxied(t *testing.T) {
	asks := annotated(ownPrefix+"data-path", "Proxy")
	opt := withProxies()
	o := Objects{Services: []*corev1.Service{
		serviceObject("a"), serviceObject("b"), serviceObject("other", having("192.0.2.9")),
	}}
	var c Compiler
	var other *lb.Group
	for _, tt := range []struct {
		name, service string
		changes       []func(*corev1.Service)
		isProxied     bool
	}{
		{"one proxied", "a", []func(*corev1.Service){asks, proxiedStatus, having("192.0.2.1")}, true},
		{"a sharer", "b", []func(*corev1.Service){having("192.0.2.1")}, false},
		{"a sharer that is proxied", "b", []func(*corev1.Service){asks, proxiedStatus, having("192.0.2.1")}, true},
		{"a sharer without a status", "b", []func(*corev1.Service){asks, having("192.0.2.1")}, false},
		{"a sharer that left the address", "b", []func(*corev1.Service){having("192.0.2.2")}, true},
		{"none proxied", "a", []func(*corev1.Service){having("192.0.2.1")}, false},
	} {
		o.Services = slices.Clone(o.Services)
		i := slices.IndexFunc(o.Services, func(s *corev1.Service) bool { return s.Name == tt.service })
		o.Services[i] = serviceObject(tt.service, tt.changes...)
		state, _ := c.Compile(o, opt)
		fresh, _ := Compile(o, opt)
		if diff := cmp.Diff(fresh.Services, state.Services, addrs()); diff != "" {
			t.Errorf("%s: -Compile +Compiler\n%s", tt.name, diff)
		}
		if state.Services[0].Proxied != tt.isProxied {
			t.Errorf("%s: a is proxied: %t", tt.name, !tt.isProxied)
		}
		before := other
		other = c.groups.At(netip.MustParseAddr("192.0.2.9"))
		if before != nil && other != nil && other != before {
			t.Errorf("%s: the group of another Service was formed again", tt.name)
		}
	}
	if len(c.groups.All) > 0 {
		t.Errorf("%d groups are kept though no Service is proxied", len(c.groups.All))
	}
}

// TestAdminIsShared: lists of the administrator's objects that are equal stay the same if a node differs.
func TestAdminIsShared(t *testing.T) {
	o := Objects{
		Pools:             []*v1beta1.IPAddressPool{poolObject("p", 1, "192.0.2.0/28")},
		L2Advertisements:  []*v1beta1.L2Advertisement{{}},
		BGPAdvertisements: []*v1beta1.BGPAdvertisement{{}},
		Peers: []*v1beta1.BGPPeer{{
			Spec: v1beta1.BGPPeerSpec{MyASN: 64512, PeerASN: 64513, PeerAddress: "172.31.0.1"},
		}},
		Services: []*corev1.Service{serviceObject("s")},
	}
	var c Compiler
	compile := func(zone string) lb.State {
		o.Nodes = []*corev1.Node{nodeObject("n1", zone, "172.30.0.11")}
		state, _ := c.Compile(o, served())
		return state
	}
	before, after := compile("a"), compile("b")
	if after.Nodes["n1"].Labels["zone"] != "b" || len(after.Peers) != 1 {
		t.Errorf("nodes %v, peers %v", after.Nodes, after.Peers)
	}
	for what, isSame := range map[string]bool{
		"pools":               lb.Same(before.Pools, after.Pools),
		"L2Advertisements":    lb.Same(before.L2Advertisements, after.L2Advertisements),
		"BGPAdvertisements":   lb.Same(before.BGPAdvertisements, after.BGPAdvertisements),
		"peers":               lb.Same(before.Peers, after.Peers),
		"Services":            lb.Same(before.Services, after.Services),
		"nodes (a heartbeat)": lb.SameMap(after.Nodes, compile("b").Nodes),
	} {
		if !isSame {
			t.Errorf("equal %s are others", what)
		}
	}
}

// TestSpeakerIgnoresRequests: what only the assignment of addresses reads makes no difference to a speaker.
func TestSpeakerIgnoresRequests(t *testing.T) {
	recall := "for=default/s,192.0.2.3=p"
	for what, change := range map[string]func(*corev1.Service){
		"a load-balancer id": annotated(openstack.ID, "another"),
		"a requested pool":   annotated(AnnotationPool, "p"),
		"an invalid request": annotated(AnnotationAddresses, "?"),
		"recalled addresses": annotated(v1beta1.AnnotationAssigned, recall),
		"a policy of families": func(o *corev1.Service) {
			o.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
		},
	} {
		for _, forSpeaker := range []bool{true, false} {
			opt := served()
			opt.ForSpeaker = forSpeaker
			var c Compiler
			before, _ := c.Compile(Objects{Services: []*corev1.Service{serviceObject("s")}}, opt)
			after, _ := c.Compile(Objects{Services: []*corev1.Service{serviceObject("s", change)}}, opt)
			if isSame := before.Services[0] == after.Services[0]; isSame != forSpeaker {
				t.Errorf("%s, speaker: %t: the Service is the same: %t", what, forSpeaker, isSame)
			}
		}
	}
}

// TestDependentIsShared: a Service that depends on other objects keeps its pointer as long as its own object and these
// have the same effect.
func TestDependentIsShared(t *testing.T) {
	uid := func(o *corev1.Service) { o.UID = types.UID("uid-" + o.Name) }
	service := func(name string, changes ...func(*corev1.Service)) *corev1.Service {
		return serviceObject(name, append(changes, uid)...)
	}
	named := func(id string) func(*corev1.Service) { return annotated(openstack.ID, id) }
	many := func(o *corev1.Service) {
		for i := range int32(4) {
			o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Port: 8000 + i})
		}
	}
	o := Objects{Services: []*corev1.Service{
		service("first"),
		service("itself", named("uid-itself")),
		service("joins", named("uid-first"), having("192.0.2.1")),
		service("lost", named("uid-none")),
		service("ports", many),
		service("proxied", annotated(ownPrefix+"data-path", "Proxy"), proxiedStatus, having("192.0.2.2")),
		service("refused", named("uid-first"), annotated(AnnotationSharingKey, "k")),
		service("restored", named("uid-none"), annotated(v1beta1.AnnotationAssigned, "for=default/restored,192.0.2.3=p")),
	}}
	opt := withProxies(func(opt *Options) { opt.MorePorts = 2 })
	var c Compiler
	last, first := c.Compile(o, opt)
	differs := len(last.Services) != len(o.Services) || len(last.Services[4].Unserved) == 0 ||
		last.Services[7].LoadBalancerID != ""
	if differs {
		t.Fatalf("%d Services, %+v, %+v", len(last.Services), last.Services[4], last.Services[7])
	}
	run := func(what string, differ ...string) {
		t.Helper()
		state, problems := c.Compile(o, opt)
		if fresh, _ := Compile(o, opt); !reflect.DeepEqual(fresh.Services, state.Services) {
			t.Errorf("%s: %s", what, cmp.Diff(fresh.Services, state.Services, addrs()))
		}
		if len(problems) != len(first) {
			t.Errorf("%s: %d problems, not %d", what, len(problems), len(first))
		}
		for i, s := range state.Services {
			if want := slices.Contains(differ, s.Key.Name); (s != last.Services[i]) != want {
				t.Errorf("%s: %s is another pointer: %t", what, s.Key.Name, !want)
			}
		}
		last = state
	}
	replace := func(i int, changes ...func(*corev1.Service)) {
		o.Services = slices.Clone(o.Services)
		o.Services[i] = o.Services[i].DeepCopy()
		for _, change := range changes {
			change(o.Services[i])
		}
	}

	run("nothing changed")
	replace(0)
	run("another object of the same content")
	replace(2, annotated("example.org/x", "y"))
	run("an annotation of others")
	replace(2, having("192.0.2.9"))
	run("an address", "joins")
	replace(0, func(o *corev1.Service) { o.UID = "uid-none" })
	run("a Service has the lost id", "first", "restored")
	replace(0, uid)
	run("and has it no more", "first", "restored")
	o.EndpointSlices = []*discoveryv1.EndpointSlice{sliceObject("joins", discoveryv1.Endpoint{NodeName: new("n1")})}
	run("endpoints", "joins")
	run("nothing changed again")
}
