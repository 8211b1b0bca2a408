package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Find returns the object of a name; nil if there is none.
func Find[T metav1.Object](all []T, namespace, name string) (none T) {
	for _, o := range all {
		if o.GetNamespace() == namespace && o.GetName() == name {
			return o
		}
	}
	return none
}

// conditionStep makes a step of a condition of any object, where True is good; none without the condition.
func conditionStep(name string, conditions []metav1.Condition, condition string) Step {
	c := meta.FindStatusCondition(conditions, condition)
	if c == nil {
		return Step{Name: name}
	}
	verdict := map[bool]Verdict{true: OK, false: Problem}[c.Status == metav1.ConditionTrue]
	return Step{Name: name, Verdict: verdict, Reason: lb.Reason(c.Reason), Text: cmp.Or(c.Message, c.Reason)}
}

// absent is the report about an object that is not there, or could not be read.
func (s Snapshot) absent(subject, resource string, step Step) Report {
	step.Verdict, step.Text = Problem, "it does not exist"
	step.Do = cmp.Or(step.Do, "correct the name: kubectl get "+resource+" lists those that exist")
	return Report{Subject: subject, Steps: []Step{s.seen(step, "it", resource)}}.conclude()
}

// Address explains the Services that have an address, or why none has it.
func (s Snapshot) Address(a netip.Addr) (out []Report) {
	for _, o := range s.Objects.Services {
		if slices.Contains(config.StatusAddresses(o), a) {
			out = append(out, s.about(o.Namespace, o.Name).explain())
		}
	}
	if len(out) > 0 {
		return out
	}
	holder := Step{
		Name:    "holder",
		Verdict: Problem,
		Text:    "no Service has it",
		Do:      "ask for it with the annotation holdfast.dev/addresses on a Service",
	}
	pool := Step{
		Name:    "pool",
		Verdict: Problem,
		Reason:  lb.AddressNotInPool,
		Text:    "no IPAddressPool has it",
		Do:      "add it to a pool",
	}
	state, _ := s.compile()
	if p := lb.IndexOf(state.Pools, func(p lb.Pool) []lb.Range { return p.Ranges }).Find(a); p.Name != "" {
		pool = Step{Name: "pool", Verdict: OK, Text: "IPAddressPool " + p.Name + " has it"}
	}
	r := Report{Subject: "address " + a.String()}
	r.add(s.seen(holder, "Services", Services), s.seen(pool, "pools", Pools))
	r.add(s.claims(a)...)
	return []Report{r.conclude()}
}

// claims are steps about foreign machines that have one of these addresses; any address if there are none.
func (s Snapshot) claims(of ...netip.Addr) (out []Step) {
	for _, state := range s.States {
		for _, c := range state.Status.Conflicts {
			if a, err := netip.ParseAddr(c.Address); err == nil && (of == nil || slices.Contains(of, a)) {
				out = append(out, Step{Name: "conflict", Verdict: Problem, Reason: lb.AddressConflict,
					Text: fmt.Sprintf(
						"node %s sees that the machine with MAC %s has %s",
						state.Name,
						c.MAC,
						c.Address,
					)})
			}
		}
	}
	return out
}

// problems are steps about the problems of nodes; none about a node without a verdict.
func (s Snapshot) problems(verdict func(node string) Verdict) (out []Step) {
	for _, state := range s.States {
		for _, p := range state.Status.Problems {
			out = append(
				out,
				Step{
					Name:    "node " + state.Name,
					Verdict: verdict(state.Name),
					Reason:  lb.Reason(p.Reason),
					Text:    p.Message,
				},
			)
		}
	}
	return out
}

// sessions are steps about the BGP sessions of a node or with a peer; of all for "".
func (s Snapshot) sessions(node, peer string) (out []Step) {
	for _, state := range s.States {
		for _, one := range state.Status.Sessions {
			if node != "" && state.Name != node || peer != "" && one.Peer != peer {
				continue
			}
			step := Step{
				Name:    "session",
				Verdict: OK,
				Text:    fmt.Sprintf("established, %d routes", one.AdvertisedRoutes),
			}
			if one.State != v1beta1.SessionStateEstablished {
				step.Verdict, step.Reason, step.Text = Problem, lb.SessionDown, cmp.Or(one.LastError, "no session yet")
				step.Do = fmt.Sprintf(
					"repair the session of node %s with BGPPeer %s: %s",
					state.Name,
					one.Peer,
					step.Text,
				)
			} else if one.Withheld != "" {
				step.Verdict, step.Text = Note, one.Withheld
			}
			step.Text = fmt.Sprintf("node %s with BGPPeer %s: %s", state.Name, one.Peer, step.Text)
			out = append(out, step)
		}
	}
	return out
}

func counted(p *v1beta1.IPAddressPool) Step {
	st := p.Status
	step := Step{
		Name:    "addresses",
		Verdict: OK,
		Text: fmt.Sprintf(
			"IPv4: %d assigned, %d available, %d wait for reuseDelay; IPv6: %d, %d, %d",
			st.AssignedIPv4,
			st.AvailableIPv4,
			st.QuarantinedIPv4,
			st.AssignedIPv6,
			st.AvailableIPv6,
			st.QuarantinedIPv6,
		),
	}
	if st.AvailableIPv4+st.AvailableIPv6 == 0 {
		step.Verdict, step.Reason, step.Do = Problem, lb.PoolExhausted, "add addresses to IPAddressPool "+p.Name
	}
	if st.RetainedCount > 0 {
		step.Details = []string{fmt.Sprintf("%d are held though they were removed from the pool", st.RetainedCount)}
	}
	return step
}

// Pool explains an IPAddressPool.
func (s Snapshot) Pool(name string) Report {
	r, p := Report{Subject: "IPAddressPool " + name}, Find(s.Objects.Pools, "", name)
	if p == nil {
		return s.absent(r.Subject, Pools, Step{Name: "object"})
	}
	for _, condition := range []string{v1beta1.ConditionValid, v1beta1.ConditionAddressesFree} {
		r.add(conditionStep(condition, p.Status.Conditions, condition))
	}
	r.add(counted(p))
	return r.conclude()
}

// Peer explains the sessions with a BGPPeer.
func (s Snapshot) Peer(name string) Report {
	r, p := Report{Subject: "BGPPeer " + name}, Find(s.Objects.Peers, "", name)
	if p == nil {
		return s.absent(r.Subject, Peers, Step{Name: "object"})
	}
	r.add(conditionStep(v1beta1.ConditionValid, p.Status.Conditions, v1beta1.ConditionValid), s.session(p))
	r.add(s.sessions("", name)...)
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
		if st := state.Status; state.Name == name {
			r.add(
				Step{
					Name:    "layer 2",
					Verdict: OK,
					Text: fmt.Sprintf(
						"it answers for %d IPv4 and %d IPv6 addresses, and hears %d of %d speakers",
						st.Owned.IPv4,
						st.Owned.IPv6,
						st.Members.Alive,
						st.Members.Expected,
					),
				},
			)
		}
		if slices.ContainsFunc(state.Status.Unreachable, func(n v1beta1.SilentNode) bool { return n.Node == name }) {
			r.add(
				Step{
					Name:    "network",
					Verdict: Problem,
					Reason:  lb.NodeUnreachable,
					Text:    "node " + state.Name + " does not reach it",
				},
			)
		}
	}
	r.add(s.problems(func(node string) Verdict { return map[bool]Verdict{true: Problem}[node == name] })...)
	r.add(s.sessions(name, "")...)
	r.add(s.seen(Step{Name: "state"}, "SpeakerStates", States))
	return r.conclude()
}

// Status is one screen about the whole cluster: problems first.
func (s Snapshot) Status() Report {
	r := Report{Subject: "Holdfast in namespace " + s.Namespace}
	r.add(s.controller(false), s.speakers(), s.versions(), s.peers(), s.pools(), s.services())
	r.add(s.problems(func(string) Verdict { return Problem })...)
	r.add(s.claims()...)
	r.add(s.invalid()...)
	order := []Verdict{Problem, Note, OK, Unseen}
	slices.SortStableFunc(r.Steps, func(a, b Step) int {
		return cmp.Compare(slices.Index(order, a.Verdict), slices.Index(order, b.Verdict))
	})
	return r.conclude()
}

func (s Snapshot) versions() Step {
	var images []string
	add := func(daemon string, pod corev1.PodSpec) {
		for _, c := range pod.Containers[:min(len(pod.Containers), 1)] {
			images = append(images, daemon+" "+c.Image)
		}
	}
	if s.Controller != nil {
		add("controller", s.Controller.Spec.Template.Spec)
	}
	if s.Speakers != nil {
		add("speaker", s.Speakers.Spec.Template.Spec)
	}
	if images == nil {
		return Step{Name: "versions", Verdict: Unseen, Text: "they could not be read"}
	}
	return Step{Name: "versions", Verdict: OK, Text: strings.Join(images, ", ")}
}

// peers counts the sessions of BGP; none without BGP.
func (s Snapshot) peers() Step {
	all, down, do := s.sessions("", ""), []string(nil), ""
	for _, one := range all {
		if one.Verdict == Problem {
			down, do = append(down, one.Text), cmp.Or(do, one.Do)
		}
	}
	if len(all) == 0 {
		return Step{}
	}
	step := summary("sessions", lb.SessionDown, "%d of %d BGP sessions are up", len(all), down)
	step.Do = do
	return step
}

// pools counts their addresses.
func (s Snapshot) pools() Step {
	step := Step{Name: "pools", Verdict: OK, Text: fmt.Sprintf("%d of them", len(s.Objects.Pools))}
	for _, p := range s.Objects.Pools {
		one := counted(p)
		if one.Verdict == Problem {
			step.Verdict, step.Reason, step.Do = Note, one.Reason, one.Do
		}
		step.Details = append(step.Details, p.Name+": "+one.Text)
	}
	return s.seen(step.bound(), "they", Pools)
}

// services counts those that are served, and names those that are not.
func (s Snapshot) services() Step {
	all, bad, do := 0, []string(nil), ""
	for _, o := range s.Objects.Services {
		if !s.Options.Serves(o) {
			continue
		}
		all++
		if why := unserved(o.Status.Conditions); why != "" {
			do = "kubectl holdfast why " + o.Namespace + "/" + o.Name
			bad = append(bad, fmt.Sprintf("%s/%s: %s", o.Namespace, o.Name, why))
		}
	}
	step := summary("Services", "", "%d of %d are served", all, bad)
	step.Do = do
	return s.seen(step, "they", Services)
}

// unserved returns the reason why a Service is not served; "" if it is.
func unserved(conditions []metav1.Condition) string {
	why := "no speaker announces it"
	for _, condition := range []string{
		v1beta1.ConditionAddressAssigned, v1beta1.ConditionAnnouncedL2, v1beta1.ConditionAnnouncedBGP,
	} {
		step := conditionStep("", conditions, condition)
		if step.Verdict == Problem {
			return string(step.Reason)
		}
		if step.Verdict == OK && condition != v1beta1.ConditionAddressAssigned {
			why = ""
		}
	}
	return why
}

// invalid are the objects that are not in force as they are written.
func (s Snapshot) invalid() (out []Step) {
	_, problems := s.compile()
	for _, p := range problems {
		if p.Object.Kind != "Service" {
			out = append(out, fault(p))
		}
	}
	for _, p := range s.Objects.Peers {
		if step := conditionStep("BGPPeer "+p.Name, p.Status.Conditions, v1beta1.ConditionValid); step.Verdict == Problem &&
			p.Spec.PasswordSecret != nil {
			out = append(out, step)
		}
	}
	slices.SortStableFunc(out, func(a, b Step) int { return strings.Compare(a.Name, b.Name) })
	return out
}
