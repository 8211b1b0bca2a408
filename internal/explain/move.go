package explain

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Move makes Holdfast's objects of another load balancer's configuration.
type Move struct {
	// Snapshot is the cluster, at last with the Objects.
	Snapshot
	Objects []runtime.Object
	Report  Report
}

func (m *Move) note(verdict Verdict, name, format string, args ...any) {
	m.Report.add(Step{Name: name, Verdict: verdict, Text: fmt.Sprintf(format, args...)})
}

func (m *Move) create(kind string, o runtime.Object) {
	o.GetObjectKind().SetGroupVersionKind(v1beta1.GroupVersion.WithKind(kind))
	m.Objects = append(m.Objects, o)
}

// finish reports what the daemons decide about the objects, and which Services lose addresses that they had before.
func (m *Move) finish(before []*corev1.Service) {
	for _, o := range m.Objects {
		m.Put(o.DeepCopyObject())
	}
	after, step, all := decide(m.Snapshot, ""), Step{Name: "addresses", Verdict: OK}, 0
	for _, old := range before {
		o, had := Find(m.Snapshot.Objects.Services, old.Namespace, old.Name), inUse(old)
		if o == nil || o.DeletionTimestamp != nil || len(had) == 0 || o.Spec.Type != corev1.ServiceTypeLoadBalancer || !m.Options.Serves(o) && !ofMetalLB(o) {
			continue // it goes, or yet another load balancer serves it
		}
		all++
		why, lost := "its class is not Holdfast's", true
		if a := after.assignments[lb.Key{Namespace: o.Namespace, Name: o.Name}]; a != nil {
			why = string(a.Reason) + ": " + a.Message
			lost = a.Reason == lb.ForeignAddress || slices.ContainsFunc(had, func(one netip.Addr) bool { return !slices.Contains(a.Addresses, one) })
		}
		if lost {
			step.Verdict = Problem
			step.Details = append(step.Details, fmt.Sprintf("%s/%s had %s: %s", o.Namespace, o.Name, lb.SomeOf(had), why))
		}
	}
	step.Text = fmt.Sprintf("%d of %d Services keep theirs", all-len(step.Details), all)
	for _, p := range after.problems {
		m.Report.add(Step{Name: p.Object.String(), Verdict: map[bool]Verdict{false: Problem, true: Note}[p.Note], Reason: p.Reason, Text: p.Message})
	}
	for _, of := range slices.Sorted(maps.Keys(m.Unread)) {
		m.note(Unseen, of, "%s", m.Unread[of])
	}
	m.Report.Steps = slices.Insert(m.Report.Steps, 0, m.seen(step, "Services", Services))
	m.Report = m.Report.conclude()
}

// MetalLB returns the move of these objects of MetalLB, read as the kinds of the same names and fields here, and of the Services, with
// the addresses that they had before.
func (s Snapshot) MetalLB(foreign []runtime.Object, before []*corev1.Service) Move {
	m := Move{Snapshot: s, Report: Report{Subject: "Move from MetalLB"}}
	for _, o := range foreign {
		kind, meta := o.GetObjectKind().GroupVersionKind().Kind, o.(metav1.Object)
		name, namespace := kind+" "+meta.GetName(), cmp.Or(meta.GetNamespace(), "metallb-system")
		meta.SetNamespace("")
		if one, ok := o.(*v1beta1.BFDProfile); ok && one.Spec.EchoMode {
			one.Spec.EchoMode = false
			m.note(Note, name, "without echoMode, which is not served: choose shorter intervals")
		}
		if one, ok := o.(*v1beta1.BGPPeer); ok && !m.peer(name, namespace, &one.Spec) {
			continue
		}
		m.create(kind, o)
	}
	m.services()
	m.note(Note, "differences", "ports that no Service declares are closed; source ranges hold for pods and nodes, too; BGPPeers have graceful restart by default")
	m.finish(before)
	return m
}

// peer reports whether a BGPPeer can be served.
func (m *Move) peer(name, namespace string, s *v1beta1.BGPPeerSpec) bool {
	if s.VRF != "" {
		m.note(Problem, name, "left out, because sessions within a VRF are not served: use a router that the node reaches by its main routing table")
		return false
	}
	if s.HoldTime != nil && s.HoldTime.Duration == 0 {
		s.HoldTime = nil // MetalLB's conversion from v1beta1 writes it where none was given
		m.note(Note, name, "without holdTime 0s, with which a session would outlive a dead router: it is 90s")
	}
	if ref := s.PasswordSecret; ref != nil && ref.Name != "" {
		ref.Namespace = ""
		m.note(Note, name, `copy the password: kubectl create secret generic %[1]s -n %[2]s --type=kubernetes.io/basic-auth --from-literal=password=`+
			`"$(kubectl get secret %[1]s -n %[3]s -o go-template='{{.data.password | base64decode}}')"`, ref.Name, m.Namespace, namespace)
	}
	return true
}

// ofMetalLB reports whether MetalLB serves a Service, or did, by the annotation of its controller.
func ofMetalLB(o *corev1.Service) bool {
	return o.Annotations["metallb.io/ip-allocated-from-pool"]+o.Annotations["metallb.universe.tf/ip-allocated-from-pool"] != ""
}

// services shows the classes that MetalLB serves, for which Holdfast is set while it is not installed, and lets pools share addresses
// across namespaces, as MetalLB's do, if Services need it.
func (m *Move) services() {
	classes, without, first, across := map[string]int{}, false, map[netip.Addr]string{}, []string(nil)
	for _, o := range m.Snapshot.Objects.Services {
		if class := o.Spec.LoadBalancerClass; ofMetalLB(o) && class != nil {
			classes[*class]++
		} else if ofMetalLB(o) {
			without = true
		}
		for _, a := range addresses(o) {
			if first[a] = cmp.Or(first[a], o.Namespace); first[a] != o.Namespace {
				across = append(across, fmt.Sprintf("%s/%s has %s as %s does", o.Namespace, o.Name, a, first[a]))
			}
		}
	}
	for _, class := range slices.Sorted(maps.Keys(classes)) {
		if m.Snapshot.Controller == nil {
			m.Options.LoadBalancerClass, m.Options.Default = class, without
		}
		m.note(Note, "class "+class, "%d Services have it, and cannot change it: install Holdfast with --set loadBalancerClass=%s,defaultLoadBalancer=%t",
			classes[class], class, without)
	}
	if across != nil {
		m.note(Note, "sharing", "pools have sharing.scope Cluster, not Namespace, because Services of several namespaces share: %s", lb.SomeOf(across))
	}
	for _, o := range m.Objects {
		if pool, ok := o.(*v1beta1.IPAddressPool); ok && across != nil {
			pool.Spec.Sharing = &v1beta1.Sharing{Scope: v1beta1.ShareCluster}
		}
	}
}
