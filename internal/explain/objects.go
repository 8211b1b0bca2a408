package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// conditionStep makes a step of a condition of any object, where True is good.
func conditionStep(name string, conditions []metav1.Condition, condition string) (Step, bool) {
	c := meta.FindStatusCondition(conditions, condition)
	if c == nil {
		return Step{Name: name}, false
	}
	step := Step{Name: name, Verdict: OK, Reason: lb.Reason(c.Reason), Text: c.Message}
	if c.Status != metav1.ConditionTrue {
		step.Verdict = Problem
	}
	if step.Text == "" {
		step.Text = c.Reason
	}
	return step, true
}

// absent is the report about an object that is not there, or could not be read.
func (s Snapshot) absent(subject, resource string) Report {
	step := Step{Name: "object", Verdict: Problem, Text: "it does not exist"}
	if text, failed := s.Unread[resource]; failed {
		step = Step{Name: "object", Verdict: Unseen, Text: "it could not be read: " + text}
	}
	return Report{Subject: subject, Steps: []Step{step}}.conclude()
}

// Address explains the Services that have an address, or why none has it.
func (s Snapshot) Address(a netip.Addr) []Report {
	var out []Report
	for _, o := range s.Objects.Services {
		if slices.Contains(addresses(o), a) {
			out = append(out, s.Service(lb.Key{Namespace: o.Namespace, Name: o.Name}))
		}
	}
	if len(out) > 0 {
		return out
	}
	r := Report{Subject: "address " + a.String()}
	step := Step{Name: "holder", Verdict: Problem, Text: "no Service has it", Do: "ask for it with the annotation holdfast.dev/addresses on a Service"}
	if len(s.unread(Services)) > 0 {
		step = Step{Name: "holder", Verdict: Unseen, Text: "Services could not be read: " + s.Unread[Services]}
	}
	r.add(step)
	pool := Step{Name: "pool", Verdict: Problem, Reason: lb.AddressNotInPool, Text: "no IPAddressPool has it", Do: "add it to a pool"}
	state, _ := s.compile()
	for i := range state.Pools {
		if slices.ContainsFunc(state.Pools[i].Ranges, func(r lb.Range) bool { return r.Contains(a) }) {
			pool = Step{Name: "pool", Verdict: OK, Text: "IPAddressPool " + state.Pools[i].Name + " has it"}
		}
	}
	if len(s.unread(Pools)) > 0 {
		pool = Step{Name: "pool", Verdict: Unseen, Text: "pools could not be read: " + s.Unread[Pools]}
	}
	r.add(pool)
	for _, step := range s.claims(func(claimed string) bool { return claimed == a.String() }) {
		r.add(step)
	}
	return []Report{r.conclude()}
}

// claims are steps about foreign machines that have addresses.
func (s Snapshot) claims(of func(address string) bool) (out []Step) {
	for _, state := range s.States {
		for _, c := range state.Status.Conflicts {
			if of(c.Address) {
				out = append(out, Step{Name: "conflict", Verdict: Problem, Reason: lb.AddressConflict,
					Text: fmt.Sprintf("node %s sees that the machine with MAC %s has %s: remove the address there, or cut it from the pool", state.Name, c.MAC, c.Address)})
			}
		}
	}
	return out
}

// Pool explains an IPAddressPool.
func (s Snapshot) Pool(name string) Report {
	r := Report{Subject: "IPAddressPool " + name}
	for _, p := range s.Objects.Pools {
		if p.Name != name {
			continue
		}
		for _, condition := range []string{v1beta1.ConditionValid, v1beta1.ConditionAddressesFree} {
			if step, known := conditionStep(condition, p.Status.Conditions, condition); known {
				r.add(step)
			}
		}
		step, st := Step{Name: "addresses", Verdict: OK}, p.Status
		step.Text = fmt.Sprintf("IPv4: %d assigned, %d available, %d wait for reuseDelay; IPv6: %d, %d, %d", st.AssignedIPv4, st.AvailableIPv4, st.QuarantinedIPv4,
			st.AssignedIPv6, st.AvailableIPv6, st.QuarantinedIPv6)
		if st.AvailableIPv4+st.AvailableIPv6 == 0 {
			step.Verdict, step.Reason, step.Do = Problem, lb.PoolExhausted, "add addresses to the pool"
		}
		if st.RetainedCount > 0 {
			step.Details = append(step.Details, fmt.Sprintf("%d are held though they were removed from the pool", st.RetainedCount))
		}
		r.add(step)
		return r.conclude()
	}
	return s.absent(r.Subject, Pools)
}

// Peer explains the sessions with a BGPPeer.
func (s Snapshot) Peer(name string) Report {
	r := Report{Subject: "BGPPeer " + name}
	for _, p := range s.Objects.Peers {
		if p.Name != name {
			continue
		}
		if step, known := conditionStep(v1beta1.ConditionValid, p.Status.Conditions, v1beta1.ConditionValid); known {
			r.add(step)
		}
		if step, broken := s.session(p); broken {
			r.add(step)
		}
		for _, state := range s.States {
			for _, one := range state.Status.Sessions {
				switch {
				case one.Peer != name:
				case one.State != v1beta1.SessionStateEstablished:
					r.add(Step{Name: "node " + state.Name, Verdict: Problem, Reason: lb.NoSession, Text: "no session: " + one.LastError})
				case one.Withheld != "":
					r.add(Step{Name: "node " + state.Name, Verdict: Note, Text: one.Withheld})
				default:
					r.add(Step{Name: "node " + state.Name, Verdict: OK, Text: fmt.Sprintf("established, %d routes", one.AdvertisedRoutes)})
				}
			}
		}
		if len(s.unread(States)) > 0 {
			r.add(Step{Name: "sessions", Verdict: Unseen, Text: "SpeakerStates could not be read: " + s.Unread[States]})
		}
		return r.conclude()
	}
	return s.absent(r.Subject, Peers)
}

// Node explains what the speaker of a node sees and does.
func (s Snapshot) Node(name string) Report {
	r := Report{Subject: "node " + name}
	if !slices.ContainsFunc(s.Objects.Nodes, func(n *corev1.Node) bool { return n.Name == name }) {
		return s.absent(r.Subject, Nodes)
	}
	speaker := Step{Name: "speaker", Verdict: Problem, Text: "no pod of the speaker is on the node",
		Do: "look at the node's taints and at speaker.nodeSelector of the chart"}
	for _, p := range s.Pods {
		if p.Spec.NodeName == name && ready(p) {
			speaker = Step{Name: "speaker", Verdict: OK, Text: "pod " + p.Name + " is ready"}
		}
	}
	for _, p := range s.waitingSpeakers() {
		if p.node == name {
			speaker.Text, speaker.Do = p.why, "kubectl -n "+s.Namespace+" describe pod and logs of it"
		}
	}
	if len(s.unread(Pods)) > 0 {
		speaker = Step{Name: "speaker", Verdict: Unseen, Text: "pods could not be read: " + s.Unread[Pods]}
	}
	r.add(speaker)
	for _, state := range s.States {
		if state.Name != name {
			for _, n := range state.Status.Unreachable {
				if n.Node == name {
					r.add(Step{Name: "network", Verdict: Problem, Text: "node " + state.Name + " does not reach it"})
				}
			}
			continue
		}
		st := state.Status
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
	if len(s.unread(States)) > 0 {
		r.add(Step{Name: "state", Verdict: Unseen, Text: "SpeakerStates could not be read: " + s.Unread[States]})
	}
	return r.conclude()
}
