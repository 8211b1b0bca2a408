package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

const metalLBGroup = "metallb.io"

// isStatusOfMetalLB reports whether MetalLB itself writes objects of a kind, so that they move nowhere.
func isStatusOfMetalLB(kind schema.GroupVersionKind) bool {
	return kind.Group == metalLBGroup &&
		(strings.HasSuffix(kind.Kind, "Status") ||
			strings.HasSuffix(kind.Kind, "State"))
}

// newScheme knows what a user may apply: Services, Holdfast's kinds, and MetalLB's, which have the names and fields of
// ours.
func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	both := runtime.NewSchemeBuilder(v1beta1.AddToScheme, corev1.AddToScheme)
	utilruntime.Must(both.AddToScheme(s))
	for kind, of := range s.KnownTypes(v1beta1.GroupVersion) {
		for _, version := range []string{"v1beta1", "v1beta2"} {
			s.AddKnownTypeWithName(
				schema.GroupVersionKind{Group: metalLBGroup, Version: version, Kind: kind},
				reflect.New(of).Interface().(runtime.Object),
			)
		}
	}
	return s
}

// Move makes Holdfast's objects of another load balancer's configuration. Its Snapshot is the cluster, at last with
// these objects.
type Move struct {
	Snapshot
	Objects []runtime.Object
	Report  Report
	// MetalLB is how MetalLB runs, as far as the commands of a move depend on it.
	MetalLB metalLBMove
}

// note adds a step, with what to do about it if something is to be done.
func (m *Move) note(verdict Verdict, name, do, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if do != "" {
		text, do = text+": "+do, "for "+name+": "+do
	}
	m.Report.add(Step{Name: name, Verdict: verdict, Text: text, Do: do})
}

// finish reports what the daemons decide about the objects, and which Services lose addresses that they had before.
func (m *Move) finish(before []*corev1.Service) Move {
	for _, o := range m.Objects {
		o.GetObjectKind().SetGroupVersionKind(v1beta1.GroupVersion.WithKind(reflect.TypeOf(o).Elem().Name()))
		m.Put(o.DeepCopyObject())
	}
	after, step, all := decide(m.Snapshot, ""), Step{Name: "addresses", Verdict: OK}, 0
	for _, old := range before {
		o, had := Find(m.Snapshot.Objects.Services, old.Namespace, old.Name), inUse(old)
		if o == nil ||
			o.DeletionTimestamp != nil ||
			len(had) == 0 ||
			o.Spec.Type != corev1.ServiceTypeLoadBalancer ||
			!m.Options.Serves(o) &&
				!ofMetalLB(o) {
			continue // it goes, or yet another load balancer serves it
		}
		all++
		key := lb.Key{Namespace: o.Namespace, Name: o.Name}
		a := cmp.Or(after.assignments[key], &ipam.Assignment{})
		lost := func(one netip.Addr) bool { return !slices.Contains(a.Addresses, one) }
		if a.Reason == lb.ForeignAddress || slices.ContainsFunc(had, lost) {
			step.Verdict = Problem
			held := lb.WithRemedies(after.held(key), a.Reason)
			step.Details = append(step.Details, fmt.Sprintf("%s had %s: %s", key, lb.SomeOf(had), held))
		}
	}
	step.Text = fmt.Sprintf("%d of %d Services keep theirs", all-len(step.Details), all)
	for _, p := range after.problems {
		m.Report.add(fault(p))
	}
	m.Report.Steps = slices.Insert(m.Report.Steps, 0, m.seen(step, "Services", Services))
	m.Report = m.Report.conclude()
	return *m
}

// MetalLB returns the move of these objects of MetalLB, which were read as ours, and of the Services as they were
// before.
func (s Snapshot) MetalLB(foreign []runtime.Object, before []*corev1.Service) Move {
	m := Move{Snapshot: s, Report: Report{Subject: "Move from MetalLB"}}
	skipped, names := Step{Name: "left out", Verdict: Note}, map[string]string{}
	for _, o := range foreign {
		if one, ok := o.(*unstructured.Unstructured); ok {
			skipped.Details = append(
				skipped.Details,
				lb.Object{Kind: one.GetKind(), Namespace: one.GetNamespace(), Name: one.GetName()}.String(),
			)
			continue
		}
		meta := o.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta)
		name, namespace := reflect.TypeOf(o).Elem().Name()+" "+meta.Name, cmp.Or(meta.Namespace, "metallb-system")
		if first, isTaken := names[name]; isTaken && first != namespace {
			m.Report.add(Step{Name: name, Verdict: Problem,
				Text: fmt.Sprintf(
					"left out in namespace %s, because namespace %s has one of this name, and Holdfast's objects are in no namespace",
					namespace,
					first,
				),
				Do: "give one of the two another name, and correct what refers to it"})
			continue
		}
		names[name] = namespace
		delete(meta.Annotations, corev1.LastAppliedConfigAnnotation)
		*meta = metav1.ObjectMeta{Name: meta.Name, Labels: meta.Labels, Annotations: meta.Annotations}
		if one, ok := o.(*v1beta1.BFDProfile); ok && one.Spec.EchoMode {
			one.Spec.EchoMode = false
			m.note(Note, name, "choose shorter intervals", "without echoMode, which is not served")
		}
		if one, ok := o.(*v1beta1.BGPPeer); ok {
			if one.Spec.VRF != "" {
				m.note(Problem, name, "use a router that the node reaches by its main routing table",
					"left out, because sessions within a VRF are not served")
				continue
			}
			if one.Spec.HoldTime != nil && one.Spec.HoldTime.Duration == 0 {
				one.Spec.HoldTime = nil // MetalLB's conversion from v1beta1 writes it where none was given
				m.note(
					Note,
					name,
					"",
					"without holdTime 0s, with which a session would outlive a dead router: it is 90s",
				)
			}
			if ref := one.Spec.PasswordSecret; ref != nil && ref.Name != "" {
				ref.Namespace = ""
				m.Report.add(Step{Name: name, Verdict: Problem,
					Text: fmt.Sprintf(
						"its password is in Secret %s of namespace %s, and is read in namespace %s",
						ref.Name,
						namespace,
						s.Namespace,
					),
					Do: fmt.Sprintf(
						`copy the password: kubectl create secret generic %[1]s -n %[2]s --type=kubernetes.io/basic-auth --from-literal=password=`+
							`"$(kubectl get secret %[1]s -n %[3]s -o go-template='{{.data.password | base64decode}}')"`,
						ref.Name,
						s.Namespace,
						namespace,
					)})
			}
		}
		m.Objects = append(m.Objects, o)
	}
	if n := len(skipped.Details); n > 0 {
		skipped.Text = fmt.Sprintf("%d objects that are no configuration of MetalLB: they stay as they are", n)
		m.Report.add(skipped.bound())
	}
	m.services()
	if s.MetalLBParts != nil {
		m.parts(*s.MetalLBParts)
	}
	m.note(
		Note,
		"differences",
		"",
		"ports that no Service declares are closed; source ranges hold for pods and nodes, too; BGPPeers have graceful "+
			"restart by default",
	)
	return m.finish(before)
}

// ofMetalLB reports whether MetalLB serves a Service, or did, by the annotation of its controller.
func ofMetalLB(o *corev1.Service) bool {
	return o.Annotations["metallb.io/ip-allocated-from-pool"] != "" ||
		o.Annotations["metallb.universe.tf/ip-allocated-from-pool"] != ""
}

// services takes MetalLB's class while Holdfast is not installed, and lets pools share across namespaces, as MetalLB's
// do, if need be.
func (m *Move) services() {
	classes, first, across := map[string]int{}, map[netip.Addr]string{}, []string(nil)
	for _, o := range m.Snapshot.Objects.Services {
		if class := o.Spec.LoadBalancerClass; class != nil && ofMetalLB(o) {
			classes[*class]++
		}
		for _, a := range config.StatusAddresses(o) {
			if first[a] = cmp.Or(first[a], o.Namespace); first[a] != o.Namespace {
				across = append(across, fmt.Sprintf("%s/%s has %s as %s does", o.Namespace, o.Name, a, first[a]))
			}
		}
	}
	for class, n := range classes { // MetalLB has one at most, and then serves no Service without it
		if m.Snapshot.Controller == nil {
			m.Options.LoadBalancerClass, m.Options.Default = class, false
		}
		m.note(
			Note,
			"class "+class,
			"install Holdfast with --set loadBalancerClass="+class+",defaultLoadBalancer=false",
			"%d Services have it and cannot change it",
			n,
		)
	}
	for _, o := range m.Objects {
		if pool, ok := o.(*v1beta1.IPAddressPool); ok && across != nil {
			pool.Spec.Sharing = &v1beta1.Sharing{Scope: v1beta1.ShareCluster}
			m.note(
				Note,
				"IPAddressPool "+pool.Name,
				"",
				"sharing.scope is Cluster, not Namespace, because Services of several namespaces share: %s",
				lb.SomeOf(across),
			)
		}
	}
}

// Cloud is the configuration of OpenStack's cloud controller manager.
type Cloud struct {
	LoadBalancer      CloudSection
	LoadBalancerClass map[string]*CloudSection
}

// CloudSection says where addresses come from. Only [LoadBalancer] has the last three settings.
type CloudSection struct {
	FloatingNetworkID  string `gcfg:"floating-network-id"`
	FloatingSubnetID   string `gcfg:"floating-subnet-id"`
	FloatingSubnet     string `gcfg:"floating-subnet"`
	FloatingSubnetTags string `gcfg:"floating-subnet-tags"`
	NetworkID          string `gcfg:"network-id"`
	SubnetID           string `gcfg:"subnet-id"`
	MaxSharedLB        int    `gcfg:"max-shared-lb"`
	InternalLB         bool   `gcfg:"internal-lb"`
	NodeSelector       string `gcfg:"node-selector"`
}

const occm = "loadbalancer.openstack.org/"

// inUse returns the addresses of a Service. The cloud controller manager may show a host name in place of an address.
func inUse(o *corev1.Service) []netip.Addr {
	out := config.StatusAddresses(o)
	if a, err := netip.ParseAddr(o.Annotations[occm+"load-balancer-address"]); err == nil && out == nil {
		out = append(out, a)
	}
	return out
}

// OpenStack returns the move of what the cloud controller manager uses and makes. Only OpenStack knows the ranges of
// subnets.
func (s Snapshot) OpenStack(cloud Cloud, before []*corev1.Service) Move {
	m, opt := Move{Snapshot: s, Report: Report{Subject: "Move from OpenStack"}}, cloud.LoadBalancer
	m.note(
		Note,
		"chart",
		"",
		"install Holdfast with the values openStack: {maxShared: %d, internal: %t, nodeSelector: %q}",
		cmp.Or(opt.MaxSharedLB, 2),
		opt.InternalLB,
		opt.NodeSelector,
	)
	m.Options.OpenStack.Internal = opt.InternalLB
	pools, holders, floating := map[string]*v1beta1.IPAddressPool{}, map[netip.Addr]int{}, []runtime.Object(nil)
	cloud.pool(pools, "", "", false)
	for class := range cloud.LoadBalancerClass {
		cloud.pool(pools, class, "", false)
	}
	for _, o := range s.Objects.Services {
		for _, a := range inUse(o) {
			holders[a]++
		}
	}
	state, _ := m.compile()
	for _, one := range state.Services {
		o := Find(s.Objects.Services, one.Key.Namespace, one.Key.Name)
		id := cmp.Or(o.Annotations[occm+"floating-subnet-id"], o.Annotations[occm+"floating-network-id"])
		if one.Internal {
			id = cmp.Or(o.Annotations[occm+"subnet-id"], o.Annotations[occm+"network-id"])
		}
		fip := &v1beta1.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name},
			Spec:       v1beta1.FloatingIPSpec{ServiceName: o.Name},
		}
		fip.Spec.ReclaimPolicy = v1beta1.ReclaimDelete
		if one.KeepFloatingIP {
			fip.Spec.ReclaimPolicy = v1beta1.ReclaimRetain
		}
		for _, a := range inUse(o) {
			if p := cloud.pool(pools, one.Class, id, one.Internal); holders[a] > 0 {
				p.Spec.Addresses = append(p.Spec.Addresses, a.String())
			}
			if holders[a] == 1 && !one.Internal {
				fip.Spec.Addresses = append(fip.Spec.Addresses, a.String())
			}
			holders[a] = 0 // the pool has it, whoever else shares it
		}
		if fip.Spec.Addresses != nil {
			floating = append(floating, fip)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		if pools[name].Spec.Addresses == nil {
			m.note(
				Problem,
				"IPAddressPool "+name,
				"write the ranges of its subnet, or leave it out",
				"no Service has an address of it",
			)
		}
		m.Objects = append(m.Objects, pools[name])
	}
	m.Objects = append(m.Objects, floating...)
	m.note(
		Note,
		"pools",
		"add the other ranges of their subnets, and the names and tags that patterns match",
		"they hold the addresses in use",
	)
	return m.finish(before)
}

// pool returns the pool of a class or else, if a Service names an id, of that network or subnet.
func (c Cloud) pool(pools map[string]*v1beta1.IPAddressPool, class, id string, internal bool) *v1beta1.IPAddressPool {
	from, name := *cmp.Or(c.LoadBalancerClass[class], &c.LoadBalancer), cmp.Or(class, "openstack")
	from.FloatingNetworkID = cmp.Or(from.FloatingNetworkID, c.LoadBalancer.FloatingNetworkID)
	if class == "" &&
		id != "" &&
		!slices.Contains([]string{from.FloatingSubnetID, from.FloatingNetworkID, from.SubnetID, from.NetworkID}, id) {
		from, name = CloudSection{FloatingSubnetID: id, SubnetID: id}, id
	}
	spec := v1beta1.IPAddressPoolSpec{
		Scope:   v1beta1.ScopeExternal,
		Aliases: []string{from.FloatingNetworkID, from.FloatingSubnetID, from.FloatingSubnet},
	}
	isPattern := func(text string) bool { return text == "" || strings.ContainsAny(text, "!~*?{") }
	if internal {
		name, spec = name+"-internal", v1beta1.IPAddressPoolSpec{
			Scope:   v1beta1.ScopeInternal,
			Aliases: []string{from.NetworkID, from.SubnetID},
		}
	} else if !isPattern(from.FloatingSubnetTags) {
		spec.Tags = strings.FieldsFunc(from.FloatingSubnetTags, func(c rune) bool { return strings.ContainsRune("&, ", c) })
	}
	spec.Aliases = slices.DeleteFunc(spec.Aliases, isPattern)
	if name = strings.ToLower(name); class != "" {
		spec.Classes = v1beta1.Words{class}
	}
	pools[name] = cmp.Or(pools[name], &v1beta1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec})
	return pools[name]
}
