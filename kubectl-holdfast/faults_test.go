package main

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// written is the cluster after the daemons have read it: default/web has the conditions that they decide about it. All
// nodes have one link, with these subnets.
func (s Snapshot) written(t *testing.T, subnets ...string) Snapshot {
	t.Helper()
	service := Find(s.Objects.Services, "default", "web")
	service.Status = corev1.ServiceStatus{}
	state, _ := s.compile()
	link := lb.Link{Name: "eth0", Default: true}
	for _, subnet := range subnets {
		link.Prefixes = append(link.Prefixes, netip.MustParsePrefix(subnet))
	}
	state.Links = map[string][]lb.Link{}
	for node := range state.Nodes {
		state.Links[node] = []lb.Link{link}
	}
	for i, a := range ipam.Assign(state).Assignments {
		state.Services[i].Addresses, state.Services[i].Record = a.Addresses, a.Record
		if a.Key != web {
			continue
		}
		assigned := condition(v1beta1.ConditionAddressAssigned, a.Reason, a.Message)
		if len(a.Addresses) == 0 {
			assigned.Status = metav1.ConditionFalse
		}
		s.set(assigned)
		for _, address := range a.Addresses {
			service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress,
				corev1.LoadBalancerIngress{IP: address.String()})
		}
		record, _ := config.Record(service.UID, a.Record)
		s.set(record)
	}
	var sessions []lb.Session
	for _, one := range s.States[0].Status.Sessions {
		sessions = append(sessions, lb.Session{Peer: one.Peer, State: string(one.State), LastError: one.LastError})
	}
	if len(service.Status.LoadBalancer.Ingress) == 0 || !s.Options.Serves(service) {
		return s
	}
	v := plan.ForNode("n1", state).Verdicts.Of(web)
	l2, _, _ := v.L2.OnLinks("", nil)
	bgp, _ := v.BGP.WithSessions("n1", sessions)
	for name, outcome := range map[string]plan.Outcome{
		v1beta1.ConditionAnnouncedL2: l2, v1beta1.ConditionAnnouncedBGP: bgp,
	} {
		if outcome.Selected {
			c := condition(name, outcome.Reason, outcome.Message)
			if outcome.Reason != lb.Announced {
				c.Status = metav1.ConditionFalse
			}
			s.set(c)
		}
	}
	return s
}

// TestPlantedFaults: what an operator did wrong is named by the step that is at fault and by the first thing to do,
// with exit status 1, though the daemons have read it and call the Service announced where they do.
func TestPlantedFaults(t *testing.T) {
	const onLink, elsewhere = "192.0.2.0/24", "198.51.100.0/24"
	spec := func(s *Snapshot) *corev1.ServiceSpec { return &s.Objects.Services[0].Spec }
	slice := func(s *Snapshot) *discoveryv1.EndpointSlice { return s.Objects.EndpointSlices[0] }
	dualStack := func(s *Snapshot) {
		spec(s).ClusterIPs, spec(s).IPFamilies = []string{"10.0.0.1", "fd00::1"}, []corev1.IPFamily{
			corev1.IPv4Protocol, corev1.IPv6Protocol,
		}
		s.Objects.Pools[0].Spec.Addresses = append(s.Objects.Pools[0].Spec.Addresses, "2001:db8::1-2001:db8::2")
		six := slice(s).DeepCopy()
		six.Name, six.AddressType = "web-2", discoveryv1.AddressTypeIPv6
		s.Objects.EndpointSlices = append(s.Objects.EndpointSlices, six)
	}
	refused := func(s *Snapshot) {
		s.Objects.L2Advertisements = nil
		s.Objects.BGPAdvertisements = []*v1beta1.BGPAdvertisement{{ObjectMeta: metav1.ObjectMeta{Name: "r"}}}
		peer := &v1beta1.BGPPeer{
			ObjectMeta: metav1.ObjectMeta{Name: "r"},
			Spec:       v1beta1.BGPPeerSpec{MyASN: 64512, PeerASN: 65009, PeerAddress: "192.0.2.9"},
		}
		peer.Status.Conditions = []metav1.Condition{condition(v1beta1.ConditionEstablished, lb.SessionDown,
			"established on 0 of 3 nodes", true)}
		s.Objects.Peers = []*v1beta1.BGPPeer{peer}
		for _, state := range s.States {
			state.Status.Sessions = []v1beta1.SessionState{{Peer: "r", State: v1beta1.SessionStateDown,
				LastError: "the router's AS is 65001 and not 65009: correct peerASN, or the router's own AS"}}
		}
	}
	probed := func(text, do string) func(*Snapshot) {
		return func(s *Snapshot) {
			s.Probed = []Step{{Name: "wire at n3", Verdict: Problem,
				Text: text + "; for 192.0.2.1 on link eth0 answers 02:00:00:00:00:01 of node n1", Do: do}}
		}
	}
	for _, tt := range []struct {
		name   string
		plant  func(s *Snapshot)
		subnet string
		// step is at fault, first is the beginning of what to do.
		step, first string
	}{
		{"no fault", func(*Snapshot) {}, onLink, "", "nothing: no problem was found"},
		{"a class that is not ours", func(s *Snapshot) { spec(s).LoadBalancerClass = new("example.com/x") }, onLink,
			"class", "create the Service again with spec.loadBalancerClass: holdfast.dev/lb"},
		{"no pool may serve it", func(s *Snapshot) { s.Objects.Pools[0].Spec.AutoAssign = new(false) }, onLink,
			"address", "Create an IPAddressPool, or let one serve the Service"},
		{"an exhausted pool", func(s *Snapshot) {
			s.Objects.Pools[0].Spec.Addresses = []string{"192.0.2.7"}
			other := s.Objects.Services[0].DeepCopy()
			other.Name, other.UID, other.CreationTimestamp = "first", "first", metav1.NewTime(moment.AddDate(0, 0, -1))
			other.Status = corev1.ServiceStatus{
				LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.7"}}},
			}
			record, _ := config.Record("first", lb.Origins{{Address: netip.MustParseAddr("192.0.2.7"), Pool: "lan"}})
			other.Status.Conditions = []metav1.Condition{record}
			s.Objects.Services = append(s.Objects.Services, other)
		}, onLink, "address", "Add addresses to a pool"},
		{"no pod has the named port", func(s *Snapshot) {
			spec(s).Ports[0].TargetPort = intstr.FromString("htttp")
			slice(s).Ports = nil // as kube-controller-manager leaves it then
		}, onLink, "endpoints", `correct targetPort of port 80, or name a container port "htttp"`},
		{"a port without a number", func(s *Snapshot) {
			spec(s).Ports[0].TargetPort = intstr.FromString("http")
			slice(s).Ports[0].Port = nil
		}, onLink, "endpoints", `correct targetPort of port 80`},
		{"one of two ports", func(s *Snapshot) {
			spec(s).Ports[0].Name = "http"
			spec(s).Ports = append(spec(s).Ports, corev1.ServicePort{
				Name: "tls", Protocol: corev1.ProtocolTCP, Port: 443, TargetPort: intstr.FromString("tls"),
			})
			slice(s).Ports[0].Name = new("http")
		}, onLink, "endpoints", `correct targetPort of port 443`},
		{"no pod has the labels", func(s *Snapshot) {
			s.Objects.EndpointSlices = nil
		}, onLink, "endpoints", "correct spec.selector"},
		{"no pod is ready", func(s *Snapshot) {
			for i := range slice(s).Endpoints {
				slice(s).Endpoints[i].Conditions = discoveryv1.EndpointConditions{
					Ready: new(false), Serving: new(true), Terminating: new(false),
				}
			}
		}, onLink, "endpoints", "make the pods ready"},
		{"pods without IPv6", func(s *Snapshot) {
			dualStack(s)
			s.Objects.EndpointSlices = s.Objects.EndpointSlices[:1]
		}, onLink, "endpoints", "take IPv6 out of spec.ipFamilies"},
		{"a pool outside the nodes' subnets", func(*Snapshot) {}, elsewhere, "layer 2",
			"Give the pool addresses of the subnet of the nodes' links"},
		{"source ranges of one family", func(s *Snapshot) {
			dualStack(s)
			spec(s).LoadBalancerSourceRanges = []string{"10.0.0.0/8"}
		}, onLink, "filter", "add source ranges of IPv6"},
		{"a router of another AS", refused, onLink, "session",
			"repair the session of node n1 with BGPPeer r: the router's AS is 65001 and not 65009: correct peerASN"},
		{"a node selector of the Service", func(s *Snapshot) {
			s.Objects.Services[0].Annotations = map[string]string{config.AnnotationNodeSelector: "rack=7"}
		}, onLink, "layer 2",
			"for node n1, n2, n3 (NodeNotSelected): correct the node selector of the Service (holdfast.dev/node-selector)"},
		{"node selectors of the advertisement", func(s *Snapshot) {
			s.Objects.L2Advertisements[0].Spec.NodeSelectors = []metav1.LabelSelector{
				{MatchLabels: map[string]string{"rack": "7"}},
			}
		}, onLink, "layer 2",
			"for node n1, n2, n3 (NodeNotSelected): correct nodeSelectors of the advertisements for layer 2"},
		{"a label of the nodes", func(s *Snapshot) {
			for _, node := range s.Objects.Nodes {
				node.Labels = map[string]string{corev1.LabelNodeExcludeBalancers: ""}
			}
		}, onLink, "layer 2",
			"for node n1, n2, n3 (NodeExcluded): Remove the label `node.kubernetes.io/exclude-from-external-load-balancers`"},
		{"a port that refuses", probed("TCP port 80 of 192.0.2.1 refuses connections",
			"let a process in the pods listen on the target port"), onLink,
			"wire at n3", "let a process in the pods listen"},
		{"a filter of others",
			probed("TCP port 80 of 192.0.2.1 does not answer", "find what drops TCP port 80: a NetworkPolicy"), onLink,
			"wire at n3", "find what drops TCP port 80"},
		{"a port that refuses because no pod has it", func(s *Snapshot) {
			probed("TCP port 80 of 192.0.2.1 is rejected by ICMP", "find what rejects TCP port 80")(s)
			spec(s).Ports[0].TargetPort = intstr.FromString("htttp")
			slice(s).Ports = nil
		}, onLink, "endpoints", "correct targetPort of port 80"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := healthy()
			tt.plant(&s)
			report := s.written(t, tt.subnet, "2001:db8::/64").explanationOf("default", "web").explain()
			cmd, out := &cobra.Command{}, bytes.Buffer{}
			cmd.SetOut(&out)
			err := (&cli{}).printReports(cmd, report)
			isFirst := strings.HasPrefix(report.First, tt.first) && strings.HasSuffix(out.String(), "First: "+report.First+"\n")
			if !isFirst || errors.Is(err, errProblem) != (tt.step != "") {
				t.Errorf("%v:\n%s", err, out.String())
			}
			isAtFault := func(one Step) bool { return one.Name == tt.step && one.Verdict == Problem && one.Do == report.First }
			if tt.step != "" && !slices.ContainsFunc(report.Steps, isAtFault) {
				t.Errorf("the step %s is not at fault:\n%s", tt.step, out.String())
			}
			for _, one := range report.Steps {
				if one.Verdict != OK && (one.Do == "" || strings.Contains(one.Do, "knows no remedy")) {
					t.Errorf("no action for the step %s: %q", one.Name, one.Do)
				}
			}
		})
	}
}
