package explain

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Foreign is an object of MetalLB. Its kinds have our names and fields.
type Foreign struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              map[string]any `json:"spec,omitempty"`
}

// mover makes Holdfast's objects from MetalLB's.
type mover struct {
	// Snapshot is the cluster with the objects so far.
	Snapshot
	objects []runtime.Object
	// named are the kinds and names of objects so far, steps what became of them.
	named map[string]bool
	steps []Step
	// differences concern all objects of a kind.
	differences []string
}

// MetalLB returns the objects that take the place of MetalLB's, with a report about what differs and about the addresses that
// Services had before.
func (s Snapshot) MetalLB(foreign []Foreign, before []*corev1.Service) ([]runtime.Object, Report) {
	m := mover{Snapshot: s, named: map[string]bool{}}
	scheme := runtime.NewScheme()
	_ = v1beta1.AddToScheme(scheme) // it only registers types
	for _, f := range foreign {
		if o, err := scheme.New(v1beta1.GroupVersion.WithKind(f.Kind)); err == nil { // the other kinds are what MetalLB writes about its state
			m.convert(f, o)
		}
	}
	classes, across := m.classes(), m.across() // which choose what the addresses depend on
	r := Report{Subject: "Move from MetalLB"}
	r.add(m.kept(before), classes)
	r.add(append(across, m.steps...)...)
	r.add(m.invalid()...)
	for _, of := range slices.Sorted(maps.Keys(m.Unread)) {
		if strings.HasSuffix(of, ".metallb.io") {
			r.add(Step{Name: of, Verdict: Unseen, Text: m.Unread[of]})
		}
	}
	r.add(m.general())
	return m.objects, r.conclude()
}

func (m *mover) note(verdict Verdict, f Foreign, format string, args ...any) {
	m.steps = append(m.steps, Step{Name: f.Kind + " " + f.Name, Verdict: verdict, Text: fmt.Sprintf(format, args...)})
}

// convert reads our object of one of MetalLB's, unless that cannot be served at all.
func (m *mover) convert(f Foreign, o runtime.Object) {
	name := f.Kind + " " + f.Name
	if m.named[name] {
		m.note(Problem, f, "left out, because there are two of this name, and Holdfast's kinds have no namespace: rename one")
		return
	}
	m.named[name] = true
	annotations := maps.Clone(f.Annotations)
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	body, _ := json.Marshal(Foreign{ // it was read from JSON
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: f.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: f.Name, Labels: f.Labels, Annotations: annotations}, Spec: f.Spec,
	})
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields() // the known ones are read all the same
	if err := d.Decode(o); err != nil {
		m.note(Problem, f, "a part is left out: %v", err)
	}
	switch one := o.(type) {
	case *v1beta1.BGPPeer:
		if one.Spec.VRF != "" {
			m.note(Problem, f, "left out, because sessions within a VRF are not served: use a router that the node reaches by its main routing table")
			return
		}
		m.peer(f, &one.Spec)
	case *v1beta1.BFDProfile:
		if one.Spec.EchoMode {
			one.Spec.EchoMode = false
			m.note(Note, f, "without echoMode, which is not served: choose shorter intervals")
		}
	}
	m.Put(o) // which knows all kinds of MetalLB
	m.objects = append(m.objects, o)
}

func (m *mover) peer(f Foreign, s *v1beta1.BGPPeerSpec) {
	s.DisableMP = false // which never had an effect
	if s.HoldTime != nil && s.HoldTime.Duration == 0 {
		s.HoldTime = nil // MetalLB's conversion from v1beta1 writes it where none was given
		m.note(Note, f, "without holdTime 0s, with which a session would outlive a dead router: it is 90s")
	}
	if s.EnableGracefulRestart == nil && len(m.differences) == 0 {
		m.differences = append(m.differences, "BGPPeers without enableGracefulRestart have it on")
	}
	ref := s.PasswordSecret
	switch {
	case ref == nil:
	case ref.Name == "":
		s.PasswordSecret = nil
	default:
		ref.Namespace = ""
		m.note(Note, f, `copy the password: kubectl create secret generic %[1]s -n %[2]s --type=kubernetes.io/basic-auth --from-literal=password=`+
			`"$(kubectl get secret %[1]s -n %[3]s -o go-template='{{.data.password | base64decode}}')"`, ref.Name, m.Namespace, cmp.Or(f.Namespace, "metallb-system"))
	}
}

// general are the differences that concern all objects of a kind.
func (m *mover) general() Step {
	if len(m.objects) == 0 {
		return Step{}
	}
	step := Step{Name: "differences", Verdict: Note, Text: "Holdfast does not do all as MetalLB does", Details: m.differences}
	step.Details = append(step.Details, "ports that no Service declares are closed on the addresses of the pools, for nodes and pods too")
	var ranges []string
	for _, o := range m.Objects.Services {
		if m.Options.Serves(o) && len(o.Spec.LoadBalancerSourceRanges) > 0 && !m.Options.AllowInternal {
			ranges = append(ranges, o.Namespace+"/"+o.Name)
		}
	}
	if ranges != nil {
		step.Details = append(step.Details, "source ranges hold for pods and nodes, too, unless the Service has the annotation holdfast.dev/internal-traffic: "+
			"Allow: "+lb.SomeOf(ranges))
	}
	return step
}

// servedBefore reports whether MetalLB serves, or served, a Service: by the annotation of its controller.
func servedBefore(o *corev1.Service) bool {
	return o.Annotations["metallb.io/ip-allocated-from-pool"]+o.Annotations["metallb.universe.tf/ip-allocated-from-pool"] != ""
}

// classes shows the classes of the Services that MetalLB serves. While Holdfast is not installed they choose its settings.
func (m *mover) classes() Step {
	services, step := map[string]int{}, Step{Name: "classes", Verdict: Note}
	for _, o := range m.Objects.Services {
		if o.Spec.Type == corev1.ServiceTypeLoadBalancer && servedBefore(o) {
			class := ""
			if o.Spec.LoadBalancerClass != nil {
				class = *o.Spec.LoadBalancerClass
			}
			services[class]++
			if m.Controller != nil && !m.Options.Serves(o) {
				step.Verdict = Problem
			}
		}
	}
	var texts, settings []string
	for _, class := range slices.Sorted(maps.Keys(services)) {
		if texts = append(texts, fmt.Sprintf("%d of class %q", services[class], class)); class != "" {
			settings = append(settings, "loadBalancerClass="+class)
			if m.Controller == nil {
				m.Options.LoadBalancerClass, m.Options.Default = class, services[""] > 0
			}
		}
	}
	if len(settings) > 0 && services[""] == 0 {
		settings = append(settings, "defaultLoadBalancer=false")
	}
	step.Text = "MetalLB serves Services, by their annotation " + strings.Join(texts, ", ")
	switch {
	case len(texts) == 0 || len(settings) == 0 && step.Verdict == Note:
		return Step{}
	case len(settings) == 0:
		settings = []string{"defaultLoadBalancer=true"}
	}
	step.Do = "a Service cannot change its class: install the chart of Holdfast with --set " + strings.Join(settings, ",")
	step.Text += ": " + step.Do
	return step
}

// across lets the pools share addresses that Services of several namespaces share, as MetalLB does everywhere.
func (m *mover) across() (out []Step) {
	sharers := map[netip.Addr][]string{}
	for _, o := range m.Objects.Services {
		for _, a := range addresses(o) {
			sharers[a] = append(sharers[a], o.Namespace+"/"+o.Name)
		}
	}
	state, _ := m.compile()
	for _, a := range slices.SortedFunc(maps.Keys(sharers), netip.Addr.Compare) {
		namespace, _, _ := strings.Cut(sharers[a][0], "/")
		if !slices.ContainsFunc(sharers[a], func(name string) bool { return !strings.HasPrefix(name, namespace+"/") }) {
			continue
		}
		for _, p := range state.Pools {
			if m.named["IPAddressPool "+p.Name] && !p.ShareAcross && slices.ContainsFunc(p.Ranges, func(r lb.Range) bool { return r.Contains(a) }) {
				Find(m.Objects.Pools, "", p.Name).Spec.Sharing = &v1beta1.Sharing{Scope: v1beta1.ShareCluster}
				out = append(out, Step{Name: "IPAddressPool " + p.Name, Verdict: Note, Details: sharers[a],
					Text: fmt.Sprintf("sharing.scope is Cluster, because Services of several namespaces share %s; the default is Namespace", a)})
			}
		}
	}
	return out
}

// kept compares the addresses that Services had with those that the controller gives them.
func (m *mover) kept(before []*corev1.Service) Step {
	step, all := Step{Name: "addresses", Verdict: OK}, 0
	assigned := decide(m.Snapshot, "").assignments
	for _, old := range before {
		o := Find(m.Objects.Services, old.Namespace, old.Name)
		had := addresses(old)
		if o == nil || len(had) == 0 || o.DeletionTimestamp != nil || o.Spec.Type != corev1.ServiceTypeLoadBalancer || !m.Options.Serves(o) && !servedBefore(o) {
			continue // it is deleted, or another load balancer serves it
		}
		all++
		why, lost := "its class is not Holdfast's", true
		if a := assigned[lb.Key{Namespace: o.Namespace, Name: o.Name}]; a != nil {
			why = string(a.Reason) + ": " + a.Message
			lost = a.Reason == lb.ForeignAddress || slices.ContainsFunc(had, func(one netip.Addr) bool { return !slices.Contains(a.Addresses, one) })
		}
		if lost {
			step.Verdict = Problem
			step.Details = append(step.Details, fmt.Sprintf("%s/%s had %s: %s", o.Namespace, o.Name, lb.SomeOf(had), why))
		}
	}
	if step.Text = fmt.Sprintf("%d of %d Services keep theirs", all-len(step.Details), all); all == 0 {
		step.Verdict = ""
	}
	return m.seen(step, "Services", Services)
}
