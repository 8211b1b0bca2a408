package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// egressRun is what a run decides about pods that send from the addresses of Services.
type egressRun struct {
	// isKnown reports whether the pods are known. Otherwise all slices stay as they are.
	isKnown bool
	result  ipam.SliceResult
	// conditions has the condition on egress of each Service that has one.
	conditions map[lb.Key]*egressCondition
}

// egressCondition is the condition on egress of a Service.
type egressCondition struct {
	metav1.Condition
	// isUnknown reports whether a condition that is there stays, because it is not known what is true.
	isUnknown bool
}

// egressSender is a Service whose pods send from its addresses.
type egressSender struct {
	service *lb.Service
	pods    []*lb.Pod
	// addresses are the addresses that pods can send from.
	addresses []netip.Addr
	// faults are texts about what pods cannot do.
	faults []string
	// notes are texts about what else the user should know.
	notes []string
	// closed is a text about the nodes that reject connections of the pods.
	closed string
	// isUnsettled reports whether it is not known yet which nodes reject connections.
	isUnsettled bool
}

// decideEgress decides which ports pods send from. hasPods reports whether the pods are known, and closed is what the
// speakers report.
func decideEgress(d *syncRun, hasPods bool, closed *closedView) egressRun {
	senders := newSenders(d)
	canSend := func(s *egressSender) bool { return len(s.addresses) > 0 }
	out := egressRun{
		isKnown:    hasPods || !slices.ContainsFunc(senders, canSend),
		conditions: map[lb.Key]*egressCondition{},
	}

	if out.isKnown {
		addresses := egressAddresses(d, senders)
		out.result = ipam.AssignSlices(addresses, d.state.Slices, d.state.Now)
		d.next = lb.Sooner(d.next, out.result.Recheck)
		closed.apply(d.state.Now, senders)
	}

	for _, s := range senders {
		out.conditions[s.service.Key] = &egressCondition{
			Condition: s.condition(out.result),
			isUnknown: !out.isKnown || s.isUnsettled,
		}
	}

	for _, p := range d.problems {
		if p.Object.Kind != config.KindService || !p.Reason.OfEgress() {
			continue
		}
		key := lb.Key{Namespace: p.Object.Namespace, Name: p.Object.Name}
		out.conditions[key] = &egressCondition{Condition: egressFault(p.Message)}
	}

	return out
}

// newSenders returns the Services that ask for egress, with the pods that they send for.
func newSenders(d *syncRun) (out []*egressSender) {
	byKey := map[lb.Key]*egressSender{}
	for i, svc := range d.state.Services {
		if !svc.Egress {
			continue
		}

		s := &egressSender{service: svc}
		s.addAddresses(d.state, d.result.Assignments[i])
		byKey[svc.Key] = s
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil
	}

	match := lb.MatchEgress(d.state.Services, d.state.EgressPods)
	for _, s := range out {
		s.pods = match.Pods[s.service.Key]
		s.addFamilies()
	}

	for _, c := range match.Conflicts {
		// The sentences do not depend on single pods: else each pod that comes or goes would cause writes of many
		// Services.
		younger := byKey[c.Younger]
		fault := fmt.Sprintf(
			"pods that it selects send from the addresses of Service %s, which is older and selects them too",
			c.Older,
		)
		younger.faults = append(younger.faults, fault)

		older := byKey[c.Older]
		note := fmt.Sprintf("the younger Service %s selects some of the pods too", c.Younger)
		older.notes = append(older.notes, note)
	}

	return out
}

// addAddresses adds the addresses of the Service that pods can send from: the Service holds them, its status shows
// them, and nodes announce them by layer 2.
func (s *egressSender) addAddresses(state lb.State, a *ipam.Assignment) {
	for i, addr := range a.Addresses {
		isForeign := a.Reason == lb.ForeignAddress && a.Pools[i] == ""
		isShown := slices.Contains(s.service.Addresses, addr)
		if isForeign || !isShown {
			continue
		}

		if isInLayer2(state, s.service, addr, a.Pools[i]) {
			s.addresses = append(s.addresses, addr)
			continue
		}

		fault := fmt.Sprintf("pods cannot send from %s, since no L2Advertisement selects its pool and the Service", addr)
		s.faults = append(s.faults, fault)
	}

	if len(s.addresses)+len(s.faults) == 0 {
		s.faults = append(s.faults, "the Service has no address yet")
	}
}

// isInLayer2 reports whether an L2Advertisement selects the Service and the pool of its address. name is the name of
// the pool; "" if the address is in no pool any more.
func isInLayer2(state lb.State, svc *lb.Service, addr netip.Addr, name string) bool {
	if name == "" {
		name = svc.Record.Of(addr).Pool
	}

	i := slices.IndexFunc(state.Pools, func(p lb.Pool) bool {
		return p.Name == name
	})
	if i < 0 {
		return false
	}

	pool := &state.Pools[i]
	return slices.ContainsFunc(state.L2Advertisements, func(a lb.L2Advertisement) bool {
		selectsService := len(a.ServiceSelectors) == 0 || lb.MatchesAny(a.ServiceSelectors, svc.Labels)
		return selectsService && a.Selects(pool)
	})
}

// addFamilies adds a fault for each family in which pods have an address and the Service has none.
func (s *egressSender) addFamilies() {
	if len(s.service.Addresses) == 0 {
		return
	}

	for _, family := range []lb.Family{lb.IPv4, lb.IPv6} {
		isOfFamily := func(a netip.Addr) bool { return lb.FamilyOf(a) == family }
		hasFamily := func(p *lb.Pod) bool {
			return slices.ContainsFunc(p.Addresses, isOfFamily)
		}
		podsHave := slices.ContainsFunc(s.pods, hasFamily)
		serviceHas := slices.ContainsFunc(s.service.Addresses, isOfFamily)
		if podsHave && !serviceHas {
			fault := fmt.Sprintf("the Service has no %s address, and its pods have one", family)
			s.faults = append(s.faults, fault)
		}
	}
}

// users returns the users that need a slice of an address. A pod that has no address yet may get one of each family.
func (s *egressSender) users(addr netip.Addr) (out []ipam.SliceUser) {
	isOfFamily := func(a netip.Addr) bool {
		return a.BitLen() == addr.BitLen()
	}
	for _, p := range s.pods {
		mayHaveFamily := len(p.Addresses) == 0 || slices.ContainsFunc(p.Addresses, isOfFamily)
		if mayHaveFamily {
			user := ipam.SliceUser{Namespace: p.Key.Namespace, Node: p.Node}
			out = append(out, user)
		}
	}

	return out
}

// egressAddresses returns the addresses that pods send from, with the ports that all their holders declare. A Service
// holds an address as soon as it is assigned, and until its status has lost it.
func egressAddresses(d *syncRun, senders []*egressSender) (out []ipam.EgressAddress) {
	indexes := map[netip.Addr]int{}
	for _, s := range senders {
		for _, addr := range s.addresses {
			i, ok := indexes[addr]
			if !ok {
				i = len(out)
				indexes[addr] = i
				out = append(out, ipam.EgressAddress{Address: addr})
			}

			out[i].Users = append(out[i].Users, s.users(addr)...)
		}
	}
	if len(out) == 0 {
		return nil
	}

	for i, svc := range d.state.Services {
		held := slices.Concat(svc.Addresses, d.result.Assignments[i].Addresses)
		for _, addr := range held {
			if at, ok := indexes[addr]; ok {
				out[at].Ports = slices.Concat(out[at].Ports, svc.Ports, svc.Unserved)
			}
		}
	}

	return out
}

// condition returns the condition of the Service.
func (s *egressSender) condition(r ipam.SliceResult) metav1.Condition {
	faults := slices.Concat(s.faults, s.refusals(r))
	verb := "send from"
	if s.closed != "" {
		faults = append(faults, s.closed)
		verb = "have ports of"
	}

	nodes := countNodes(s.nodes(r))
	addresses := strings.Join(texts(s.addresses), " and ")
	success := fmt.Sprintf("pods on %s %s %s", nodes, verb, addresses)
	if len(faults) > 0 {
		if len(s.addresses) > 0 {
			faults = append(faults, success)
		}
		sentences := slices.Concat(faults, s.notes)
		return egressFault(strings.Join(sentences, "; "))
	}

	sentences := slices.Concat([]string{success}, s.notes)
	return metav1.Condition{
		Type:    v1beta1.ConditionEgress,
		Status:  metav1.ConditionTrue,
		Reason:  string(lb.EgressActive),
		Message: lb.WithRemedies(strings.Join(sentences, "; "), lb.EgressActive),
	}
}

// countNodes returns a number of nodes as text.
func countNodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// egressFault returns the condition of a Service with pods that do not send from its addresses.
func egressFault(message string) metav1.Condition {
	return metav1.Condition{
		Type:    v1beta1.ConditionEgress,
		Status:  metav1.ConditionFalse,
		Reason:  string(lb.EgressUnavailable),
		Message: lb.WithRemedies(message, lb.EgressUnavailable),
	}
}

// refusals returns why pods of the Service get no ports of an address: the first reason for each address.
func (s *egressSender) refusals(r ipam.SliceResult) (out []string) {
	for _, addr := range s.addresses {
		users := s.users(addr)
		i := slices.IndexFunc(r.Refused, func(refused ipam.SliceRefusal) bool {
			return refused.Address == addr && slices.Contains(users, refused.User)
		})
		if i >= 0 {
			out = append(out, r.Refused[i].Message)
		}
	}

	return out
}

// nodes counts the nodes from which pods of the Service send.
func (s *egressSender) nodes(r ipam.SliceResult) int {
	nodes := map[string]bool{}
	for _, p := range s.pods {
		nodes[p.Node] = false
	}

	n := 0
	for _, slice := range r.Slices {
		isCounted, hasPods := nodes[slice.Node]
		if !hasPods || isCounted {
			continue
		}

		isInUse := slice.Released.IsZero()
		isOfNamespace := slice.Namespace == s.service.Key.Namespace
		isAtAddress := slices.Contains(s.addresses, slice.Address)
		if isInUse && isOfNamespace && isAtAddress {
			nodes[slice.Node] = true
			n++
		}
	}

	return n
}

// allocationWrite is one EgressAllocation with its desired status.
type allocationWrite struct {
	address netip.Addr
	// have is the EgressAllocation as read; nil if there is none.
	have *v1beta1.EgressAllocation
	want v1beta1.EgressAllocationStatus
	// isRecorded reports whether the slices are recorded.
	isRecorded bool
}

// allocationWrites returns the EgressAllocations with their desired status. An object whose name is no address is not
// ours, and stays.
func (d *syncRun) allocationWrites() (out []*allocationWrite) {
	byAddress := map[netip.Addr]*allocationWrite{}
	write := func(addr netip.Addr) *allocationWrite {
		w := byAddress[addr]
		if w == nil {
			w = &allocationWrite{address: addr}
			byAddress[addr] = w
			out = append(out, w)
		}

		return w
	}

	for _, o := range d.objects.EgressAllocations {
		addr, ok := config.AllocationAddress(o.Name)
		if ok {
			write(addr).have = o
		}
	}

	for _, s := range d.egress.result.Slices {
		slice := v1beta1.EgressSlice{
			First:     int32(s.First),
			Node:      s.Node,
			Namespace: s.Namespace,
		}
		if !s.Released.IsZero() {
			slice.Released = new(v1beta1.NewTime(s.Released))
		}

		w := write(s.Address)
		w.want.Slices = append(w.want.Slices, slice)
	}

	return out
}

// writeAllocations writes the EgressAllocations. A Service reports that its pods send only after that was recorded.
func (s *syncer) writeAllocations(ctx context.Context, d *syncRun) error {
	if !d.egress.isKnown {
		return nil
	}

	writes := d.allocationWrites()
	err := each(ctx, d, s.cluster, writes, func(ctx context.Context, w *allocationWrite) error {
		err := s.cluster.UpdateAllocation(ctx, w.address, w.have, w.want)
		w.isRecorded = err == nil
		return err
	})

	for _, w := range writes {
		if !w.isRecorded {
			d.markEgressUnknown(w.address)
		}
	}

	return err
}

// markEgressUnknown makes the conditions on egress of all Services with an address stay as they are.
func (d *syncRun) markEgressUnknown(addr netip.Addr) {
	for _, svc := range d.state.Services {
		c := d.egress.conditions[svc.Key]
		if c != nil && slices.Contains(svc.Addresses, addr) {
			c.isUnknown = true
		}
	}
}

// reportInvalidSlices sends an Event for each new Problem of an EgressAllocation.
func (s *syncer) reportInvalidSlices(d *syncRun) {
	before := s.invalidSlices
	s.invalidSlices = map[lb.Problem]bool{}
	for _, p := range d.problems {
		if p.Object.Kind != config.KindAllocation {
			continue
		}

		s.invalidSlices[p] = true
		if !before[p] {
			s.reportInvalidSlice(d, p)
		}
	}
}

// reportInvalidSlice sends an Event for a Problem of an EgressAllocation.
func (s *syncer) reportInvalidSlice(d *syncRun, p lb.Problem) {
	for _, o := range d.objects.EgressAllocations {
		if o.Name == p.Object.Name {
			s.cluster.Event(p.Object, o.UID, false, lb.InvalidSlice, p.Message)
		}
	}
}
