package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

const metalLBGroup = "metallb.io"

// isStatusOfMetalLB reports whether MetalLB itself writes the objects of a kind. They do not move.
func isStatusOfMetalLB(kind schema.GroupVersionKind) bool {
	isStatus := strings.HasSuffix(kind.Kind, "Status") || strings.HasSuffix(kind.Kind, "State")
	return kind.Group == metalLBGroup && isStatus
}

// newScheme returns the kinds that a user may apply: Services, Holdfast's kinds, and MetalLB's, which have the names
// and fields of Holdfast's.
func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	both := runtime.NewSchemeBuilder(v1beta1.AddToScheme, corev1.AddToScheme)
	utilruntime.Must(both.AddToScheme(s))
	for kind, t := range s.KnownTypes(v1beta1.GroupVersion) {
		object := reflect.New(t).Interface().(runtime.Object)
		for _, version := range []string{"v1beta1", "v1beta2"} {
			gvk := schema.GroupVersionKind{
				Group:   metalLBGroup,
				Version: version,
				Kind:    kind,
			}

			s.AddKnownTypeWithName(gvk, object)
		}
	}

	return s
}

// Move holds Holdfast's objects for the configuration of another load balancer. In the end its Snapshot is the cluster
// with these objects.
type Move struct {
	Snapshot
	Objects []runtime.Object
	Report  Report
	// MetalLB has the facts about MetalLB on which the commands of a move depend.
	MetalLB metalLBMove
}

// note adds a step, with what to do about it unless that is "".
func (m *Move) note(verdict Verdict, name, do, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if do != "" {
		text += ": " + do
		do = "for " + name + ": " + do
	}

	m.Report.add(Step{
		Name:    name,
		Verdict: verdict,
		Text:    text,
		Do:      do,
	})
}

// finish reports what the daemons decide about the objects, and which Services lose addresses that they had before.
func (m *Move) finish(before []*corev1.Service) Move {
	for _, o := range m.Objects {
		kind := reflect.TypeOf(o).Elem().Name()
		o.GetObjectKind().SetGroupVersionKind(v1beta1.GroupVersion.WithKind(kind))
		m.Put(o.DeepCopyObject())
	}

	after := decide(m.Snapshot, "")
	for _, p := range after.problems {
		m.Report.add(problemStep(p))
	}

	step := m.unlessUnread(m.addressesStep(before, after), "Services", Services)
	m.Report.Steps = slices.Insert(m.Report.Steps, 0, step)
	m.Report = m.Report.conclude()
	return *m
}

// addressesStep makes the step about the addresses that Services had before, and have after the move.
func (m *Move) addressesStep(before []*corev1.Service, after decisions) Step {
	step := Step{Name: "addresses", Verdict: OK}
	all := 0
	for _, old := range before {
		addresses := inUse(old)
		if len(addresses) == 0 || !m.takesOver(old) {
			continue
		}

		all++
		key := lb.Key{Namespace: old.Namespace, Name: old.Name}
		a := cmp.Or(after.assignments[key], &ipam.Assignment{})
		isLost := func(address netip.Addr) bool { return !slices.Contains(a.Addresses, address) }
		if a.Reason == lb.ForeignAddress || slices.ContainsFunc(addresses, isLost) {
			step.Verdict = Problem
			description := lb.WithRemedies(after.describeAddresses(key), a.Reason)
			detail := fmt.Sprintf("%s had %s: %s", key, lb.SomeOf(addresses), description)
			step.Details = append(step.Details, detail)
		}
	}

	step.Text = fmt.Sprintf("%d of %d Services keep theirs", all-len(step.Details), all)
	return step
}

// takesOver reports whether Holdfast serves a Service after the move. Otherwise it is deleted, or yet another load
// balancer serves it.
func (m *Move) takesOver(old *corev1.Service) bool {
	o := Find(m.Snapshot.Objects.Services, old.Namespace, old.Name)
	if o == nil || o.DeletionTimestamp != nil || o.Spec.Type != corev1.ServiceTypeLoadBalancer {
		return false
	}
	return m.Options.Serves(o) || isOfMetalLB(o)
}
