package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// MetalLB returns the move of these objects of MetalLB, which were read as Holdfast's, and of the Services as they were
// before.
func (s Snapshot) MetalLB(foreign []runtime.Object, before []*corev1.Service) Move {
	m := Move{Snapshot: s, Report: Report{Subject: "Move from MetalLB"}}
	skipped := Step{Name: "left out", Verdict: Note}
	namespaces := map[string]string{} // of each object that moves, by kind and name
	for _, o := range foreign {
		unknown, ok := o.(*unstructured.Unstructured)
		if ok {
			skipped.Details = append(skipped.Details, nameOf(unknown).String())
			continue
		}

		if m.moveObject(o, namespaces) {
			m.Objects = append(m.Objects, o)
		}
	}

	n := len(skipped.Details)
	if n > 0 {
		skipped.Text = fmt.Sprintf("%d objects that are no configuration of MetalLB: they stay as they are", n)
		m.Report.add(skipped.withFewDetails())
	}

	m.takeClass()
	m.shareAcrossNamespaces()
	if s.MetalLBParts != nil {
		m.addInstallation(*s.MetalLBParts)
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

// nameOf returns the kind and name of an object.
func nameOf(o *unstructured.Unstructured) lb.Object {
	return lb.Object{
		Kind:      o.GetKind(),
		Namespace: o.GetNamespace(),
		Name:      o.GetName(),
	}
}

// moveObject changes an object of MetalLB to Holdfast's of the same kind, and reports the differences. It reports false
// if the object cannot move.
func (m *Move) moveObject(o runtime.Object, namespaces map[string]string) bool {
	meta := o.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta)
	name := reflect.TypeOf(o).Elem().Name() + " " + meta.Name
	namespace := cmp.Or(meta.Namespace, "metallb-system")
	first, isTaken := namespaces[name]
	if isTaken && first != namespace {
		m.Report.add(Step{
			Name:    name,
			Verdict: Problem,
			Text: fmt.Sprintf(
				"left out in namespace %s, because namespace %s has one of this name, and Holdfast's objects are in no namespace",
				namespace,
				first,
			),
			Do: "give one of the two another name, and correct what refers to it",
		})

		return false
	}

	namespaces[name] = namespace
	delete(meta.Annotations, corev1.LastAppliedConfigAnnotation)
	*meta = metav1.ObjectMeta{
		Name:        meta.Name,
		Labels:      meta.Labels,
		Annotations: meta.Annotations,
	}

	switch o := o.(type) {
	case *v1beta1.BFDProfile:
		m.moveBFDProfile(o, name)
	case *v1beta1.BGPPeer:
		return m.movePeer(o, name, namespace)
	}

	return true
}

// moveBFDProfile removes the settings of a BFDProfile that Holdfast does not have.
func (m *Move) moveBFDProfile(p *v1beta1.BFDProfile, name string) {
	if p.Spec.EchoMode {
		p.Spec.EchoMode = false
		m.note(Note, name, "choose shorter intervals", "without echoMode, which is not served")
	}
}

// movePeer removes the settings of a BGPPeer that Holdfast does not have. It reports false if the peer cannot move.
func (m *Move) movePeer(p *v1beta1.BGPPeer, name, namespace string) bool {
	if p.Spec.VRF != "" {
		m.note(
			Problem,
			name,
			"use a router that the node reaches by its main routing table",
			"left out, because sessions within a VRF are not served",
		)

		return false
	}

	// MetalLB's conversion from v1beta1 writes a hold time of 0 if the user gave none.
	if p.Spec.HoldTime != nil && p.Spec.HoldTime.Duration == 0 {
		p.Spec.HoldTime = nil
		m.note(
			Note,
			name,
			"",
			"without holdTime 0s, with which a session would outlive a dead router: it is 90s",
		)
	}

	ref := p.Spec.PasswordSecret
	if ref != nil && ref.Name != "" {
		ref.Namespace = ""
		m.Report.add(m.passwordStep(ref.Name, name, namespace))
	}

	return true
}

// passwordStep makes the step about the Secret of a peer, which must be copied to Holdfast's namespace.
func (m *Move) passwordStep(secret, peer, namespace string) Step {
	return Step{
		Name:    peer,
		Verdict: Problem,
		Text: fmt.Sprintf(
			"its password is in Secret %s of namespace %s, and is read in namespace %s",
			secret,
			namespace,
			m.Namespace,
		),
		Do: fmt.Sprintf(
			`copy the password: kubectl create secret generic %[1]s -n %[2]s --type=kubernetes.io/basic-auth `+
				`--from-literal=password=`+
				`"$(kubectl get secret %[1]s -n %[3]s -o go-template='{{.data.password | base64decode}}')"`,
			secret,
			m.Namespace,
			namespace,
		),
	}
}

// isOfMetalLB reports whether MetalLB serves a Service, or served it, by the annotation of its controller.
func isOfMetalLB(o *corev1.Service) bool {
	return o.Annotations["metallb.io/ip-allocated-from-pool"] != "" ||
		o.Annotations["metallb.universe.tf/ip-allocated-from-pool"] != ""
}

// takeClass makes Holdfast serve MetalLB's class of Services, unless Holdfast is installed. MetalLB has one class at
// most, and then serves no Service without it.
func (m *Move) takeClass() {
	services := map[string]int{} // by class
	for _, o := range m.Snapshot.Objects.Services {
		class := o.Spec.LoadBalancerClass
		if class != nil && isOfMetalLB(o) {
			services[*class]++
		}
	}

	for class, n := range services {
		if m.Snapshot.Controller == nil {
			m.Options.LoadBalancerClass = class
			m.Options.Default = false
		}

		m.note(
			Note,
			"class "+class,
			"install Holdfast with --set loadBalancerClass="+class+",defaultLoadBalancer=false",
			"%d Services have it and cannot change it",
			n,
		)
	}
}

// shareAcrossNamespaces makes the pools share addresses across namespaces, like MetalLB's, if Services need that.
func (m *Move) shareAcrossNamespaces() {
	var shared []string
	first := map[netip.Addr]string{} // the first namespace that has an address
	for _, o := range m.Snapshot.Objects.Services {
		for _, a := range config.StatusAddresses(o) {
			first[a] = cmp.Or(first[a], o.Namespace)
			if first[a] != o.Namespace {
				shared = append(shared, fmt.Sprintf("%s/%s has %s as %s does", o.Namespace, o.Name, a, first[a]))
			}
		}
	}

	if shared == nil {
		return
	}

	for _, o := range m.Objects {
		pool, ok := o.(*v1beta1.IPAddressPool)
		if !ok {
			continue
		}

		pool.Spec.Sharing = &v1beta1.Sharing{Scope: v1beta1.ShareCluster}
		m.note(
			Note,
			"IPAddressPool "+pool.Name,
			"",
			"sharing.scope is Cluster, not Namespace, because Services of several namespaces share: %s",
			lb.SomeOf(shared),
		)
	}
}
