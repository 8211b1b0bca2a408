package explain

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Change is what another configuration, or the drain of a node, would change, in a line each.
type Change struct {
	// Faults are new problems of objects; Addresses, Announcers and Filters what changes of Services.
	Faults     []string `json:"problems,omitempty"`
	Addresses  []string `json:"addresses,omitempty"`
	Announcers []string `json:"announcers,omitempty"`
	Filters    []string `json:"filters,omitempty"`
}

// Empty reports whether nothing would change.
func (c Change) Empty() bool {
	return len(c.Faults)+len(c.Addresses)+len(c.Announcers)+len(c.Filters) == 0
}

// outcome is what the daemons decide about one state.
type outcome struct {
	problems    []lb.Problem
	state       lb.State
	assignments map[lb.Key]*ipam.Assignment
	verdicts    map[lb.Key]plan.Verdict
	frontends   map[lb.Key][]lb.Frontend
}

// Compare says what would change if the cluster were as after and not as before, and if a node had no pods and no speaker, by
// the functions that the daemons run.
func Compare(before, after Snapshot, drained string) Change {
	return compare(decide(before, ""), decide(after, drained))
}

// decide runs the daemons' decisions, without a node if one is drained.
func decide(s Snapshot, drained string) outcome {
	o := outcome{assignments: map[lb.Key]*ipam.Assignment{}, verdicts: map[lb.Key]plan.Verdict{}, frontends: map[lb.Key][]lb.Frontend{}}
	o.state, o.problems = s.compile()
	result := ipam.Assign(o.state)
	for i, a := range result.Assignments {
		o.assignments[a.Key] = a
		one := &o.state.Services[i] // as the controller will write it
		one.Addresses, one.Record = a.Addresses, a.Record
	}
	if drained != "" {
		delete(o.state.Members, drained)
		for i := range o.state.Services {
			one := &o.state.Services[i]
			if one.ServingNodes = maps.Clone(one.ServingNodes); one.ServingNodes[drained] {
				delete(one.ServingNodes, drained)
				one.Serving = one.ServingAnywhere || len(one.ServingNodes) > 0
			}
		}
	}
	// Every node sees the same owners.
	if members := slices.Sorted(maps.Keys(o.state.Members)); len(members) > 0 {
		for _, v := range plan.ForNode(members[0], o.state).Verdicts {
			o.verdicts[v.Service] = v
		}
	}
	for _, f := range plan.Frontends(o.state) {
		o.frontends[f.Service] = append(o.frontends[f.Service], f)
	}
	return o
}

func compare(before, after outcome) (c Change) {
	for _, p := range after.problems {
		if !slices.Contains(before.problems, p) {
			c.Faults = append(c.Faults, fmt.Sprintf("%s: %s: %s", p.Object, p.Reason, p.Message))
		}
	}
	keys := maps.Clone(before.assignments)
	maps.Copy(keys, after.assignments)
	for _, key := range slices.SortedFunc(maps.Keys(keys), lb.Key.Compare) {
		old, next := before.words(key), after.words(key)
		for i, lines := range []*[]string{&c.Addresses, &c.Announcers, &c.Filters} {
			if old[i] != next[i] {
				*lines = append(*lines, fmt.Sprintf("%s: %s -> %s", key, old[i], next[i]))
			}
		}
	}
	return c
}

func (o outcome) words(key lb.Key) [3]string {
	return [3]string{held(o.assignments[key]), announced(o.verdicts[key]), admitted(o.frontends[key])}
}

// held words what a Service holds; an address that is in no pool any more stays with it, and is named.
func held(a *ipam.Assignment) string {
	if a == nil {
		return "not served"
	}
	var out []string
	for i, address := range a.Addresses {
		from := "of pool " + a.Pools[i]
		if a.Pools[i] == "" {
			from = "of no pool any more: it stays until the Service gives it up"
		}
		out = append(out, fmt.Sprintf("%s (%s)", address, from))
	}
	if len(out) == 0 {
		return "none (" + string(a.Reason) + ")"
	}
	return strings.Join(out, ", ")
}

// announced words who announces a Service.
func announced(v plan.Verdict) string {
	var out []string
	for _, a := range v.L2.Announcers {
		out = append(out, fmt.Sprintf("%s by node %s", a.Address, a.Node))
	}
	if v.L2.Selected && len(out) == 0 {
		out = append(out, "layer 2: none ("+string(v.L2.Reason)+")")
	}
	switch {
	case len(v.BGP.Nodes) > 0:
		out = append(out, "BGP by "+lb.SomeOf(v.BGP.Nodes))
	case v.BGP.Selected:
		out = append(out, "BGP: none ("+string(v.BGP.Reason)+")")
	}
	if len(out) == 0 {
		return "not announced"
	}
	return strings.Join(out, ", ")
}

// admitted words who may connect to a Service, port by port where they differ.
func admitted(frontends []lb.Frontend) string {
	var out []string
	for _, f := range frontends {
		who := "all"
		if f.Restricted {
			who = fmt.Sprint(f.Allow)
		}
		if len(f.Deny) > 0 {
			who += fmt.Sprintf(" but %v", f.Deny)
		}
		if f.ConnectionLimit > 0 || f.RateLimit > 0 {
			who += fmt.Sprintf(", limits %d and %d/s", f.ConnectionLimit, f.RateLimit)
		}
		out = append(out, fmt.Sprintf("%s/%d from %s", f.Protocol, f.Port, who))
	}
	slices.Sort(out)
	if out = slices.Compact(out); len(out) == 0 {
		return "closed"
	}
	return strings.Join(out, ", ")
}

// Put adds an object to the snapshot as if a user applied it, or reports that it is of no kind that Holdfast reads.
func (s *Snapshot) Put(object any) bool {
	o := &s.Objects
	if one, ok := object.(*corev1.Service); ok {
		if old := Find(o.Services, one.Namespace, one.Name); old != nil {
			one.Status, one.Spec.ClusterIPs, one.Spec.ClusterIP = old.Status, old.Spec.ClusterIPs, old.Spec.ClusterIP
			one.Spec.IPFamilies, one.Spec.IPFamilyPolicy = old.Spec.IPFamilies, old.Spec.IPFamilyPolicy
		}
	}
	return put(s.Now, &o.Pools, object) || put(s.Now, &o.L2Advertisements, object) || put(s.Now, &o.BGPAdvertisements, object) ||
		put(s.Now, &o.Peers, object) || put(s.Now, &o.BFDProfiles, object) || put(s.Now, &o.Communities, object) ||
		put(s.Now, &o.FloatingIPs, object) || put(s.Now, &o.Services, object)
}

// put adds an object to the others of its kind, or reports that it is of another. It replaces the object of the same name, and
// takes its identity and age. The slice before stays as it is.
func put[T metav1.Object](at time.Time, all *[]T, object any) bool {
	one, ok := object.(T)
	if !ok {
		return false
	}
	*all = slices.Clone(*all)
	for i, old := range *all {
		if old.GetNamespace() == one.GetNamespace() && old.GetName() == one.GetName() {
			one.SetUID(old.GetUID())
			one.SetCreationTimestamp(old.GetCreationTimestamp())
			one.SetGeneration(old.GetGeneration() + 1)
			(*all)[i] = one
			return true
		}
	}
	one.SetCreationTimestamp(metav1.NewTime(at))
	*all = append(*all, one)
	return true
}
