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

// decisions are the daemons' decisions about one state of the cluster.
type decisions struct {
	problems []lb.Problem
	// unadvertised are notes on pools that no advertisement selects.
	unadvertised []lb.Problem
	assignments  map[lb.Key]*ipam.Assignment
	verdicts     map[lb.Key]plan.Verdict
	frontends    map[lb.Key][]lb.Frontend
}

// decide makes the daemons' decisions about a snapshot, without the drained node if that is not "".
func decide(s Snapshot, drained string) decisions {
	state, problems := s.compile()
	assigned := ipam.Assign(state)
	d := decisions{
		problems:     problems,
		unadvertised: config.Unadvertised(state, assigned.Held),
		assignments:  map[lb.Key]*ipam.Assignment{},
		verdicts:     map[lb.Key]plan.Verdict{},
		frontends:    map[lb.Key][]lb.Frontend{},
	}

	delete(state.Members, drained)
	for i, a := range assigned.Assignments {
		d.assignments[a.Key] = a

		// The plan sees the Service as the controller will write it.
		service := state.Services[i]
		service.Addresses = a.Addresses
		service.Record = a.Record
		service.Backends = service.Backends.WithoutNode(drained)
	}

	// Every node sees the same owners.
	members := slices.Sorted(maps.Keys(state.Members))
	if len(members) > 0 {
		for _, v := range plan.ForNode(members[0], state).Verdicts.All() {
			d.verdicts[v.Service] = *v
		}
	}

	for _, f := range plan.Frontends(state) {
		d.frontends[f.Service] = append(d.frontends[f.Service], f)
	}

	return d
}

// aspect is a property of Services that a change may affect, in words.
type aspect struct {
	name     string
	describe func(decisions, lb.Key) string
}

// Compare reports what changes from before to after, and if a node has no pods and no speaker: new problems, and for
// each Service its addresses, its announcers and its clients. It uses the functions of the daemons.
func Compare(before, after Snapshot, drained string) Report {
	r := Report{Subject: "Plan"}
	old := decide(before, "")
	next := decide(after, drained)
	known := slices.Concat(old.problems, old.unadvertised)
	for _, p := range slices.Concat(next.problems, next.unadvertised) {
		if !slices.Contains(known, p) {
			r.add(problemStep(p))
		}
	}

	all := maps.Clone(old.assignments)
	maps.Copy(all, next.assignments)
	keys := slices.SortedFunc(maps.Keys(all), lb.Key.Compare)
	aspects := []aspect{
		{"addresses", decisions.describeAddresses},
		{"announcers", decisions.describeAnnouncers},
		{"who may connect", decisions.describeClients},
	}

	for _, a := range aspects {
		r.add(a.step(old, next, keys))
	}

	r.add(withdrawnStep(old, next, keys, drained))
	if r.Steps == nil {
		r.add(Step{
			Name:    "changes",
			Verdict: OK,
			Text:    "Nothing would change.",
		})
	}

	return r.conclude()
}

// step makes the step about the Services for which the aspect changes. Without such a Service it has no verdict.
func (a aspect) step(old, next decisions, keys []lb.Key) Step {
	step := Step{Name: a.name}
	for _, key := range keys {
		before := a.describe(old, key)
		after := a.describe(next, key)
		if before != after {
			step.Details = append(step.Details, fmt.Sprintf("%s: %s -> %s", key, before, after))
		}
	}

	changes := len(step.Details)
	if changes > 0 {
		step.Verdict = Note
		step.Text = fmt.Sprintf("would change for %d Services", changes)
		step.Do = "apply the change, if you agree with each line"
	}

	return step
}

// withdrawnStep makes the step about Services that a change takes off the network: no address of some family is
// announced any more.
func withdrawnStep(old, next decisions, keys []lb.Key, drained string) Step {
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
		after := next.announcedFamilies(key)
		for family := range old.announcedFamilies(key) {
			if after[family] {
				continue
			}

			detail := fmt.Sprintf(
				"%s by %s: %s -> %s",
				key,
				family,
				old.describeAnnouncers(key),
				next.describeAnnouncers(key),
			)

			step.Details = append(step.Details, detail)
		}
	}

	if len(step.Details) > 0 {
		slices.Sort(step.Details)
		step.Verdict = Problem
		step.Text = "by the family that is named, no client would reach these Services"
	}

	return step
}

// announcedFamilies returns the families in which a Service is announced.
func (d decisions) announcedFamilies(key lb.Key) map[lb.Family]bool {
	out := map[lb.Family]bool{}
	verdict := d.verdicts[key]
	for _, a := range verdict.L2.Announcers {
		out[lb.FamilyOf(a.Address)] = true
	}

	assignment := d.assignments[key]
	if len(verdict.BGP.Nodes) > 0 && assignment != nil {
		for _, a := range assignment.Addresses {
			out[lb.FamilyOf(a)] = true
		}
	}

	return out
}

// describeAddresses returns the addresses of a Service, or why it has none, like its condition without the remedy.
func (d decisions) describeAddresses(key lb.Key) string {
	notServed := &ipam.Assignment{Reason: "NotServed", Message: "its class is not Holdfast's"}
	a := cmp.Or(d.assignments[key], notServed)
	return string(a.Reason) + ": " + a.Message
}

// describeAnnouncers returns the nodes that announce a Service, or why none does.
func (d decisions) describeAnnouncers(key lb.Key) string {
	var out []string
	verdict := d.verdicts[key]
	for _, a := range verdict.L2.Announcers {
		out = append(out, fmt.Sprintf("%s by node %s", a.Address, a.Node))
	}

	if verdict.L2.Selected && len(out) == 0 {
		out = append(out, "layer 2: none ("+string(verdict.L2.Reason)+")")
	}

	switch {
	case len(verdict.BGP.Nodes) > 0:
		out = append(out, "BGP by "+lb.SomeOf(verdict.BGP.Nodes))
	case verdict.BGP.Selected:
		out = append(out, "BGP: none ("+string(verdict.BGP.Reason)+")")
	}

	return cmp.Or(strings.Join(out, ", "), "not announced")
}

// describeClients returns the clients that may connect to a Service, by port.
func (d decisions) describeClients(key lb.Key) string {
	var out []string
	for _, f := range d.frontends[key] {
		clients := f.Sources()
		if f.ConnectionLimit > 0 || f.RateLimit > 0 {
			clients += fmt.Sprintf(", limits %d and %d/s", f.ConnectionLimit, f.RateLimit)
		}

		out = append(out, fmt.Sprintf("%s/%d from %s", f.Protocol, f.Port, clients))
	}

	slices.Sort(out)
	return cmp.Or(strings.Join(slices.Compact(out), ", "), "closed")
}

// Put adds an object to the snapshot as if a user applied it. It reports false if Holdfast reads no objects of the
// kind. It replaces the object of the same name, and takes its identity and age. It does not change the former slice.
func (s *Snapshot) Put(object runtime.Object) bool {
	service, ok := object.(*corev1.Service)
	if ok {
		s.keepAssigned(service)
	}

	added := object.(metav1.Object)
	added.SetCreationTimestamp(metav1.NewTime(s.Now))
	for _, list := range reflect.ValueOf(&s.Objects).Elem().Fields() {
		if list.Type() == reflect.SliceOf(reflect.TypeOf(object)) {
			others := takeIdentity(added, list)
			list.Set(reflect.Append(others, reflect.ValueOf(object)))
			return true
		}
	}

	return false
}

// keepAssigned copies the fields to a Service that the cluster has assigned to the Service of its name.
func (s *Snapshot) keepAssigned(service *corev1.Service) {
	old := Find(s.Objects.Services, service.Namespace, service.Name)
	if old == nil {
		return
	}

	service.Status = old.Status
	service.Spec.ClusterIP = old.Spec.ClusterIP
	service.Spec.ClusterIPs = old.Spec.ClusterIPs
	service.Spec.IPFamilies = old.Spec.IPFamilies
	service.Spec.IPFamilyPolicy = old.Spec.IPFamilyPolicy
}

// takeIdentity gives an object the identity and age of the object of its name in a list. It returns a copy of the list
// without that.
func takeIdentity(object metav1.Object, list reflect.Value) (others reflect.Value) {
	others = reflect.MakeSlice(list.Type(), 0, list.Len()+1)
	for i := range list.Len() {
		old := list.Index(i).Interface().(metav1.Object)
		isSame := old.GetNamespace() == object.GetNamespace() && old.GetName() == object.GetName()
		if !isSame {
			others = reflect.Append(others, list.Index(i))
			continue
		}

		object.SetUID(old.GetUID())
		object.SetCreationTimestamp(old.GetCreationTimestamp())
		object.SetGeneration(old.GetGeneration() + 1)
	}

	return others
}
