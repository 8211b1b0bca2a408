package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Find returns the object of a name; nil if there is none.
func Find[T any, P interface {
	*T
	metav1.Object
}](all []P, namespace, name string) P {
	for _, o := range all {
		if o.GetNamespace() == namespace && o.GetName() == name {
			return o
		}
	}
	return nil
}

// conditionStep makes a step of a condition of any object, where True is good; none without the condition.
func conditionStep(name string, conditions []metav1.Condition, condition string) Step {
	c := meta.FindStatusCondition(conditions, condition)
	if c == nil {
		return Step{Name: name}
	}
	step := Step{Name: name, Verdict: OK, Reason: lb.Reason(c.Reason), Text: cmp.Or(c.Message, c.Reason)}
	if c.Status != metav1.ConditionTrue {
		step.Verdict = Problem
	}
	return step
}

// absent is the report about an object that is not there, or could not be read.
func (s Snapshot) absent(subject, resource string, step Step) Report {
	step.Verdict, step.Text = Problem, "it does not exist"
	return Report{Subject: subject, Steps: []Step{s.seen(step, "it", resource)}}.conclude()
}

// Address explains the Services that have an address, or why none has it.
func (s Snapshot) Address(a netip.Addr) (out []Report) {
	for _, o := range s.Objects.Services {
		if slices.Contains(addresses(o), a) {
			out = append(out, s.Service(lb.Key{Namespace: o.Namespace, Name: o.Name}))
		}
	}
	if len(out) > 0 {
		return out
	}
	holder := Step{Name: "holder", Verdict: Problem, Text: "no Service has it", Do: "ask for it with the annotation holdfast.dev/addresses on a Service"}
	pool := Step{Name: "pool", Verdict: Problem, Reason: lb.AddressNotInPool, Text: "no IPAddressPool has it", Do: "add it to a pool"}
	state, _ := s.compile()
	for _, p := range state.Pools {
		if slices.ContainsFunc(p.Ranges, func(r lb.Range) bool { return r.Contains(a) }) {
			pool = Step{Name: "pool", Verdict: OK, Text: "IPAddressPool " + p.Name + " has it"}
		}
	}
	r := Report{Subject: "address " + a.String(), Steps: []Step{s.seen(holder, "Services", Services), s.seen(pool, "pools", Pools)}}
	r.add(s.claims(a)...)
	return []Report{r.conclude()}
}

// claims are steps about foreign machines that have one of these addresses; any address if there are none.
func (s Snapshot) claims(of ...netip.Addr) (out []Step) {
	for _, state := range s.States {
		for _, c := range state.Status.Conflicts {
			if a, err := netip.ParseAddr(c.Address); err == nil && (of == nil || slices.Contains(of, a)) {
				out = append(out, Step{Name: "conflict", Verdict: Problem, Reason: lb.AddressConflict,
					Text: fmt.Sprintf("node %s sees that the machine with MAC %s has %s", state.Name, c.MAC, c.Address)})
			}
		}
	}
	return out
}

// Pool explains an IPAddressPool.
func (s Snapshot) Pool(name string) Report {
	r := Report{Subject: "IPAddressPool " + name}
	p := Find(s.Objects.Pools, "", name)
	if p == nil {
		return s.absent(r.Subject, Pools, Step{Name: "object"})
	}
	for _, condition := range []string{v1beta1.ConditionValid, v1beta1.ConditionAddressesFree} {
		r.add(conditionStep(condition, p.Status.Conditions, condition))
	}
	st := p.Status
	step := Step{Name: "addresses", Verdict: OK, Text: fmt.Sprintf("IPv4: %d assigned, %d available, %d wait for reuseDelay; IPv6: %d, %d, %d",
		st.AssignedIPv4, st.AvailableIPv4, st.QuarantinedIPv4, st.AssignedIPv6, st.AvailableIPv6, st.QuarantinedIPv6)}
	if st.AvailableIPv4+st.AvailableIPv6 == 0 {
		step.Verdict, step.Reason, step.Do = Problem, lb.PoolExhausted, "add addresses to the pool"
	}
	if st.RetainedCount > 0 {
		step.Details = append(step.Details, fmt.Sprintf("%d are held though they were removed from the pool", st.RetainedCount))
	}
	r.add(step)
	return r.conclude()
}

// Peer explains the sessions with a BGPPeer.
func (s Snapshot) Peer(name string) Report {
	r := Report{Subject: "BGPPeer " + name}
	p := Find(s.Objects.Peers, "", name)
	if p == nil {
		return s.absent(r.Subject, Peers, Step{Name: "object"})
	}
	r.add(conditionStep(v1beta1.ConditionValid, p.Status.Conditions, v1beta1.ConditionValid), s.session(p))
	for _, state := range s.States {
		for _, one := range state.Status.Sessions {
			step := Step{Name: "node " + state.Name, Verdict: OK, Text: fmt.Sprintf("established, %d routes", one.AdvertisedRoutes)}
			switch {
			case one.Peer != name:
				continue
			case one.State != v1beta1.SessionStateEstablished:
				step.Verdict, step.Reason, step.Text = Problem, lb.NoSession, "no session: "+one.LastError
			case one.Withheld != "":
				step.Verdict, step.Text = Note, one.Withheld
			}
			r.add(step)
		}
	}
	r.add(s.seen(Step{Name: "sessions"}, "SpeakerStates", States))
	return r.conclude()
}

// Node explains what the speaker of a node sees and does.
func (s Snapshot) Node(name string) Report {
	r := Report{Subject: "node " + name}
	if Find(s.Objects.Nodes, "", name) == nil {
		return s.absent(r.Subject, Nodes, Step{Name: "object"})
	}
	speaker := Step{Name: "speaker", Verdict: Problem, Text: "no pod of the speaker is on the node",
		Do: "look at the node's taints and at speaker.nodeSelector of the chart"}
	for _, p := range s.Pods {
		if p.Spec.NodeName == name && ready(p) {
			speaker = Step{Name: "speaker", Verdict: OK, Text: "pod " + p.Name + " is ready"}
		}
	}
	if why, waits := s.waiting()[name]; waits {
		speaker.Text, speaker.Do = why, "kubectl -n "+s.Namespace+" describe pod and logs of it"
	}
	r.add(s.seen(speaker, "pods", Pods))
	for _, state := range s.States {
		st := state.Status
		if state.Name != name {
			for _, n := range st.Unreachable {
				if n.Node == name {
					r.add(Step{Name: "network", Verdict: Problem, Text: "node " + state.Name + " does not reach it"})
				}
			}
			continue
		}
		r.add(Step{Name: "layer 2", Verdict: OK, Text: fmt.Sprintf("it answers for %d IPv4 and %d IPv6 addresses, and hears %d of %d speakers", st.Owned.IPv4,
			st.Owned.IPv6, st.Members.Alive, st.Members.Expected)})
		for _, p := range st.Problems {
			r.add(Step{Name: "problem", Verdict: Problem, Reason: lb.Reason(p.Reason), Text: p.Message})
		}
		for _, one := range st.Sessions {
			if one.State != v1beta1.SessionStateEstablished {
				r.add(Step{Name: "session", Verdict: Problem, Reason: lb.NoSession, Text: "with BGPPeer " + one.Peer + ": " + one.LastError})
			}
		}
	}
	r.add(s.seen(Step{Name: "state"}, "SpeakerStates", States))
	return r.conclude()
}
