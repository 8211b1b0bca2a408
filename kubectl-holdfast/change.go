package main

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// outcome is what the daemons decide about one state.
type outcome struct {
	problems []lb.Problem
	// unadvertised are notes on pools that no advertisement selects.
	unadvertised []lb.Problem
	assignments  map[lb.Key]*ipam.Assignment
	verdicts     map[lb.Key]plan.Verdict
	frontends    map[lb.Key][]lb.Frontend
}

// decide runs the daemons' decisions, without a node if one is drained.
func decide(s Snapshot, drained string) outcome {
	state, problems := s.compile()
	assigned := ipam.Assign(state)
	o := outcome{
		problems,
		config.Unadvertised(state, assigned.Held),
		map[lb.Key]*ipam.Assignment{},
		map[lb.Key]plan.Verdict{},
		map[lb.Key][]lb.Frontend{},
	}
	delete(state.Members, drained)
	for i, a := range assigned.Assignments {
		o.assignments[a.Key] = a
		one := state.Services[i] // as the controller will write it
		one.Addresses, one.Record = a.Addresses, a.Record
		one.Backends = one.Backends.WithoutNode(drained)
	}
	// Every node sees the same owners.
	if members := slices.Sorted(maps.Keys(state.Members)); len(members) > 0 {
		for _, v := range plan.ForNode(members[0], state).Verdicts.All() {
			o.verdicts[v.Service] = *v
		}
	}
	for _, f := range plan.Frontends(state) {
		o.frontends[f.Service] = append(o.frontends[f.Service], f)
	}
	return o
}

// Compare says what would change if the cluster were as after and not as before, and if a node had no pods and no
// speaker, by the functions that the daemons run: new problems, and of Services addresses, announcers and who may
// connect.
func Compare(before, after Snapshot, drained string) Report {
	old, next, r := decide(before, ""), decide(after, drained), Report{Subject: "Plan"}
	known := slices.Concat(old.problems, old.unadvertised)
	for _, p := range slices.Concat(next.problems, next.unadvertised) {
		if !slices.Contains(known, p) {
			r.add(fault(p))
		}
	}
	keys := maps.Clone(old.assignments)
	maps.Copy(keys, next.assignments)
	for _, aspect := range []struct {
		name string
		of   func(outcome, lb.Key) string
	}{{"addresses", outcome.held}, {"announcers", outcome.announced}, {"who may connect", outcome.admitted}} {
		step := Step{Name: aspect.name}
		for _, key := range slices.SortedFunc(maps.Keys(keys), lb.Key.Compare) {
			if a, b := aspect.of(old, key), aspect.of(next, key); a != b {
				step.Details = append(step.Details, fmt.Sprintf("%s: %s -> %s", key, a, b))
				step.Verdict, step.Text = Note, fmt.Sprintf("would change for %d Services", len(step.Details))
				step.Do = "apply the change, if you agree with each line"
			}
		}
		r.add(step)
	}
	r.add(withdrawn(old, next, slices.SortedFunc(maps.Keys(keys), lb.Key.Compare), drained))
	if r.Steps == nil {
		r.add(Step{Name: "changes", Verdict: OK, Text: "Nothing would change."})
	}
	return r.conclude()
}

// withdrawn is the step about Services that a change takes off the network: in some family, no address of theirs is
// announced any more.
func withdrawn(old, next outcome, keys []lb.Key, drained string) Step {
	step := Step{
		Name: "off the network",
		Do:   "let another advertisement or node announce these Services before you apply the change",
	}
	if drained != "" {
		step.Do = fmt.Sprintf(
			"before you drain %s, run ready pods of these Services on other nodes, and let advertisements select these nodes",
			drained,
		)
	}
	for _, key := range keys {
		after := next.families(key)
		for family := range old.families(key) {
			if !after[family] {
				step.Details = append(
					step.Details,
					fmt.Sprintf("%s by %s: %s -> %s", key, family, old.announced(key), next.announced(key)),
				)
			}
		}
	}
	if n := len(step.Details); n > 0 {
		slices.Sort(step.Details)
		step.Verdict, step.Text = Problem, "by the family that is named, no client would reach these Services"
	}
	return step
}

// families are those in which a Service is announced.
func (o outcome) families(key lb.Key) map[lb.Family]bool {
	out, v := map[lb.Family]bool{}, o.verdicts[key]
	for _, a := range v.L2.Announcers {
		out[lb.FamilyOf(a.Address)] = true
	}
	if len(v.BGP.Nodes) > 0 && o.assignments[key] != nil {
		for _, a := range o.assignments[key].Addresses {
			out[lb.FamilyOf(a)] = true
		}
	}
	return out
}

// held words what a Service holds, or why it holds nothing, as its condition will but for the remedy.
func (o outcome) held(key lb.Key) string {
	a := cmp.Or(o.assignments[key], &ipam.Assignment{Reason: "NotServed", Message: "its class is not Holdfast's"})
	return string(a.Reason) + ": " + a.Message
}

func (o outcome) announced(key lb.Key) string {
	v, out := o.verdicts[key], []string(nil)
	for _, a := range v.L2.Announcers {
		out = append(out, fmt.Sprintf("%s by node %s", a.Address, a.Node))
	}
	if v.L2.Selected && len(out) == 0 {
		out = append(out, "layer 2: none ("+string(v.L2.Reason)+")")
	}
	if len(v.BGP.Nodes) > 0 {
		out = append(out, "BGP by "+lb.SomeOf(v.BGP.Nodes))
	} else if v.BGP.Selected {
		out = append(out, "BGP: none ("+string(v.BGP.Reason)+")")
	}
	return cmp.Or(strings.Join(out, ", "), "not announced")
}

// admitted words who may connect to a Service, port by port where they differ.
func (o outcome) admitted(key lb.Key) string {
	var out []string
	for _, f := range o.frontends[key] {
		who := f.Sources()
		if f.ConnectionLimit > 0 || f.RateLimit > 0 {
			who += fmt.Sprintf(", limits %d and %d/s", f.ConnectionLimit, f.RateLimit)
		}
		out = append(out, fmt.Sprintf("%s/%d from %s", f.Protocol, f.Port, who))
	}
	slices.Sort(out)
	return cmp.Or(strings.Join(slices.Compact(out), ", "), "closed")
}

// Put adds an object to the snapshot as if a user applied it, or reports that it is of no kind that Holdfast reads. It
// replaces the object of the same name, and takes its identity and age. The slice before stays as it is.
func (s *Snapshot) Put(object runtime.Object) bool {
	one := object.(metav1.Object)
	if service, ok := object.(*corev1.Service); ok {
		if old := Find(s.Objects.Services, service.Namespace, service.Name); old != nil {
			service.Status, service.Spec.ClusterIPs, service.Spec.ClusterIP = old.Status, old.Spec.ClusterIPs, old.Spec.ClusterIP
			service.Spec.IPFamilies, service.Spec.IPFamilyPolicy = old.Spec.IPFamilies, old.Spec.IPFamilyPolicy
		}
	}
	one.SetCreationTimestamp(metav1.NewTime(s.Now))
	for _, all := range reflect.ValueOf(&s.Objects).Elem().Fields() {
		if all.Type() != reflect.SliceOf(reflect.TypeOf(object)) {
			continue
		}
		others := reflect.MakeSlice(all.Type(), 0, all.Len()+1)
		for i := range all.Len() {
			old := all.Index(i).Interface().(metav1.Object)
			if old.GetNamespace() != one.GetNamespace() || old.GetName() != one.GetName() {
				others = reflect.Append(others, all.Index(i))
				continue
			}
			one.SetUID(old.GetUID())
			one.SetCreationTimestamp(old.GetCreationTimestamp())
			one.SetGeneration(old.GetGeneration() + 1)
		}
		all.Set(reflect.Append(others, reflect.ValueOf(object)))
		return true
	}
	return false
}
