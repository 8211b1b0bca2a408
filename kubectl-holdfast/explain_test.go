package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var (
	moment = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	web    = lb.Key{Namespace: "default", Name: "web"}
)

// condition is one as a daemon writes it; bad is False.
func condition(name string, reason lb.Reason, message string, bad ...bool) metav1.Condition {
	c := metav1.Condition{Type: name, Status: metav1.ConditionTrue, Reason: string(reason), Message: message}
	if len(bad) > 0 {
		c.Status = metav1.ConditionFalse
	}
	return c
}

// healthy is a cluster of three nodes that serves default/web by layer 2.
func healthy() Snapshot {
	created := metav1.NewTime(moment.Add(-time.Hour))
	meta := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), CreationTimestamp: created}
	}
	s := Snapshot{
		Now: moment, Namespace: "holdfast-system", Unread: map[string]string{}, Options: config.Options{
			LoadBalancerClass: "holdfast.dev/lb", Default: true,
		},
		Leases:   []*coordinationv1.Lease{{Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NewMicroTime(moment))}}},
		Speakers: &appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{NumberReady: 3, DesiredNumberScheduled: 3}},
	}
	s.Speakers.Spec.Template.Spec.Containers = []corev1.Container{{Image: "holdfast:1"}}
	for i := range 3 {
		node := fmt.Sprintf("n%d", i+1)
		pod := &corev1.Pod{ObjectMeta: meta("holdfast-system", "speaker-"+node), Spec: corev1.PodSpec{NodeName: node}}
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		s.Pods = append(s.Pods, pod)
		s.Objects.Nodes = append(s.Objects.Nodes, &corev1.Node{ObjectMeta: meta("", node)})
		s.States = append(s.States, &v1beta1.SpeakerState{ObjectMeta: meta("", node)})
	}
	s.Objects.Pools = []*v1beta1.IPAddressPool{{ObjectMeta: meta("", "lan"),
		Spec:   v1beta1.IPAddressPoolSpec{Addresses: []string{"192.0.2.1-192.0.2.2"}},
		Status: v1beta1.IPAddressPoolStatus{AssignedIPv4: 1, AvailableIPv4: 1}}}
	s.Objects.L2Advertisements = []*v1beta1.L2Advertisement{{ObjectMeta: meta("", "lan")}}
	s.Objects.Services = []*corev1.Service{{
		ObjectMeta: meta("default", "web"),
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"},
			Selector:   map[string]string{"app": "web"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
		},
		Status: corev1.ServiceStatus{
			LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}},
			Conditions: []metav1.Condition{
				condition(v1beta1.ConditionAddressAssigned, lb.Assigned, `has 192.0.2.1 from pool "lan"`),
				condition(v1beta1.ConditionAnnouncedL2, lb.Announced, "192.0.2.1 by node n1 on eth0"),
			},
		},
	}}
	s.Objects.EndpointSlices = []*discoveryv1.EndpointSlice{{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web-1", Labels: map[string]string{"kubernetes.io/service-name": "web"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.1.0.1"}, NodeName: new("n2")}, {Addresses: []string{"10.1.0.2"}, NodeName: new("n3")},
		},
	}}
	record, _ := config.Record("web", lb.Origins{{Address: netip.MustParseAddr("192.0.2.1"), Pool: "lan"}})
	s.set(record)
	return s
}

// set replaces a condition of default/web, or adds it.
func (s Snapshot) set(c metav1.Condition) {
	all := &s.Objects.Services[0].Status.Conditions
	*all = slices.DeleteFunc(*all, func(o metav1.Condition) bool { return o.Type == c.Type })
	*all = append(*all, c)
}

// setting sets a condition, which is False.
func setting(name string, reason lb.Reason, message string) func(*Snapshot) {
	return func(s *Snapshot) { s.set(condition(name, reason, message, true)) }
}

// pending takes the address of default/web away.
func (s Snapshot) pending(reason lb.Reason, message string) {
	s.Objects.Services[0].Status = corev1.ServiceStatus{}
	s.set(condition(v1beta1.ConditionAddressAssigned, reason, message, true))
}

// ownerOf returns the node that announces default/web by the plan.
func ownerOf(s Snapshot) string { return decide(s, "").verdicts[web].L2.Announcers[0].Node }

// page gives the speaker of a node this page.
func (s *Snapshot) page(node, page string) {
	if s.Daemons == nil {
		s.Daemons = map[string]json.RawMessage{}
	}
	s.Daemons["speaker-"+node] = json.RawMessage(page)
}

// answering is the page of a speaker that announces default/web.
const answering = `{"Filter": {"Enforced": true}, "Relay": "off", "KubeProxy": "its rules are in the kernel",
	"Layer2": {"Addresses": [{"Address": "192.0.2.1", "Phase": "announced", "Links": ["eth0"], "Answered": true, "Conflicts": [{"MAC": "02:00:00:00:00:01"}]}]}}`

// TestAsked: no more than sixteen speakers are asked, first the announcing ones; the wire is asked from those that
// announce nothing.
func TestAsked(t *testing.T) {
	s := healthy()
	for range 20 {
		s.Pods = append([]*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "waits"}}}, s.Pods...)
	}
	owner := ownerOf(s)
	if asked := s.explanationOf("default", "web").podsToAsk(); len(asked) != maxAsked || asked[0].Spec.NodeName != owner {
		t.Errorf("%d are asked, the first on node %s", len(asked), asked[0].Spec.NodeName)
	}
	s.Pods = s.Pods[20:]
	for _, node := range []string{"n1", "n2", "n3"} {
		s.page(node, `{"Filter": {"Enforced": true}}`)
	}
	other := map[string]string{"n1": "n2", "n2": "n3", "n3": "n1"}[owner]
	s.page(other, answering) // against the plan
	if got := s.explanationOf("default", "web").podsToProbe(); len(got) != 1 || got[0].Spec.NodeName == owner ||
		got[0].Spec.NodeName == other {
		t.Errorf("%d others", len(got))
	}
}

// TestService: each fault is named, by the step of the first problem and by what to do first.
func TestService(t *testing.T) {
	owner := ownerOf(healthy())
	answers := func(old, with string) func(*Snapshot) {
		return func(s *Snapshot) { s.page(owner, strings.Replace(answering, old, with, 1)) }
	}
	unannounced := func(s *Snapshot) {
		conditions := &s.Objects.Services[0].Status.Conditions
		*conditions = slices.DeleteFunc(*conditions, func(c metav1.Condition) bool {
			return c.Type == v1beta1.ConditionAnnouncedL2
		})
	}
	for _, tt := range []struct {
		name        string
		do          func(s *Snapshot)
		step, first string
		verdict     Verdict
	}{
		{"healthy", func(*Snapshot) {}, "", "no problem was found", OK},
		{"no such Service", func(s *Snapshot) { s.Objects.Services = nil }, "Service", "kubectl get services", Problem},
		{"another type", func(s *Snapshot) {
			s.Objects.Services[0].Spec.Type = corev1.ServiceTypeClusterIP
		}, "class", "spec.type: LoadBalancer", Problem},
		{"wrong class", func(s *Snapshot) {
			s.Objects.Services[0].Spec.LoadBalancerClass = new("example.com/x")
		}, "class", "holdfast.dev/lb", Problem},
		{"no class, and Holdfast is not the default", func(s *Snapshot) {
			s.Options.Default = false
		}, "class", "holdfast.dev/lb", Problem},
		{"being deleted", func(s *Snapshot) {
			s.Objects.Services[0].DeletionTimestamp = new(metav1.NewTime(moment))
		}, "class", "wait for its end", Problem},
		{"no pool", func(s *Snapshot) {
			s.pending(lb.NoPool, "there is no IPAddressPool")
		}, "address", "Create an IPAddressPool", Problem},
		{"exhausted", func(s *Snapshot) {
			s.pending(lb.PoolExhausted, `pool "lan" is full`)
		}, "address", "Add addresses to a pool", Problem},
		{"address in use", func(s *Snapshot) {
			s.pending(lb.AddressInUse, "default/other holds it")
		}, "address", "Ask for another address", Problem},
		{"port clash", func(s *Snapshot) {
			s.pending(lb.PortClash, "change the port or the sharing key")
		}, "address", "Change the port", Problem},
		{"no controller, and an address", func(s *Snapshot) { s.Leases = nil }, "controller", "describe deployment", Note},
		{"no controller, and none", func(s *Snapshot) {
			s.pending(lb.NoPool, "")
			s.Now = moment.Add(time.Minute)
		}, "controller", "no controller runs", Problem},
		{"the controller has not written", func(s *Snapshot) {
			s.Objects.Services[0].Status = corev1.ServiceStatus{}
		}, "address", "component=controller", Problem},
		{"a refused status", setting(v1beta1.ConditionWritten, lb.WriteRefused, "too long"), "status",
			"Correct that part of the Service", Problem},
		{"one speaker down", func(s *Snapshot) {
			s.Speakers.Status.NumberReady = 2
			s.Pods[2].Status = corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
				{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}}
		}, "speakers", "why a speaker is not ready", Note},
		{"proxied, and no proxy serves it", func(s *Snapshot) {
			s.set(condition(v1beta1.ConditionProxied, lb.Proxied, "by 2 proxies"))
		}, "proxy",
			"look at the pods of the Deployment of the proxies", Note},
		{"proxied", func(s *Snapshot) {
			s.set(condition(v1beta1.ConditionProxied, lb.Proxied, "by 2 proxies"))
			s.States[1].Status.Proxied = []string{"default/web"}
		}, "", "no problem was found", OK},
		{"waits for proxies", func(s *Snapshot) {
			s.set(condition(v1beta1.ConditionProxied, lb.ProxyWaits, "it waits for default/b", true))
			s.States[1].Status.Proxied = []string{"default/web"}
		}, "proxy", "look at the proxies' pods", Note},
		{"refused by the proxies", setting(v1beta1.ConditionProxied, lb.ProxyRefused, "it has a UDP port"), "proxy",
			"Change what keeps proxies away", Problem},
		{"no proxy where it is announced", func(s *Snapshot) {
			s.set(condition(v1beta1.ConditionProxied, lb.Proxied, "by 2 proxies"))
			s.States[1].Status.Proxied = []string{"default/web"}
			s.set(condition(v1beta1.ConditionAnnouncedL2, lb.NoProxy, "let proxies run there", true))
		}, "layer 2", "Let ready proxies run", Problem},
		{"all speakers down", func(s *Snapshot) { s.Speakers.Status.NumberReady = 0 }, "speakers", "describe pod", Problem},
		{"no speakers", func(s *Snapshot) { s.Speakers = nil }, "speakers", "install Holdfast", Problem},
		{"link down", setting(v1beta1.ConditionAnnouncedL2, lb.NoLink, "check that one is up"), "layer 2", "Bring a link up",
			Problem},
		{"foreign owner", func(s *Snapshot) {
			s.States[0].Status.Conflicts = []v1beta1.AddressConflict{{Address: "192.0.2.1", MAC: "02:00:00:00:00:01"}}
		}, "conflict", "Remove the address from the machine", Problem},
		{"foreign owner, and no announcement",
			setting(v1beta1.ConditionAnnouncedL2, lb.AddressConflict, "192.0.2.1 is in use by 02:00:00:00:00:01"),
			"layer 2", "Remove the address from the machine", Problem},
		{"BGP password", func(s *Snapshot) {
			s.set(condition(v1beta1.ConditionAnnouncedBGP, lb.NoSession, "no session is established with r", true))
			p := &v1beta1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
			p.Status.Conditions = []metav1.Condition{condition(v1beta1.ConditionEstablished, lb.SessionConnecting,
				"it is connecting", true)}
			s.Objects.Peers = []*v1beta1.BGPPeer{p}
			s.States[0].Status.Sessions = []v1beta1.SessionState{{Peer: "r", State: v1beta1.SessionStateDown,
				LastError: "the router may have another password"}}
		}, "session", "another password", Problem},
		{"a peer of no node", func(s *Snapshot) {
			s.set(condition(v1beta1.ConditionAnnouncedBGP, lb.Announced, "advertised by n1"))
			p := &v1beta1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
			p.Status.Conditions = []metav1.Condition{condition(v1beta1.ConditionEstablished, lb.NoNodeSelected,
				"nodeSelectors select no node", true)}
			s.Objects.Peers = []*v1beta1.BGPPeer{p}
		}, "", "no problem was found", OK},
		{"no advertisement", func(s *Snapshot) {
			s.Objects.L2Advertisements = nil
			unannounced(s)
		}, "announcement", "Create an L2Advertisement", Problem},
		{"no speaker has written", unannounced, "layer 2", "component=speaker", Problem},
		{"filter not in force", setting(v1beta1.ConditionFilterEnforced, lb.FilterNotInForce, "see the log"),
			"filter on the node", "Load the module that is missing", Problem},
		{"a node's problem", func(s *Snapshot) {
			s.States[1].Status.Problems = []v1beta1.NodeProblem{{Reason: "LinkSilent", Message: "check the port"}}
		}, "node n2", "Check the cable", Note},
		{"ranges that the network plugin enforces",
			setting(v1beta1.ConditionFiltered, lb.FilterNotEnforceable, "it is the network plugin's to enforce"),
			"filter", "Write ranges into", Note},
		{"ranges that nothing enforces", func(s *Snapshot) {
			s.Options.OtherDataPath = true
			s.Objects.Pools[0].Spec.SourceRanges = []string{"10.0.0.0/8"}
			unannounced(s)
		}, "layer 2", "Write ranges into", Problem},
		{"a speaker without a page", func(s *Snapshot) {
			s.Daemons = map[string]json.RawMessage{}
		}, "speaker " + owner, "ask an operator", Unseen},
		{"a speaker that answers", answers("", ""), "", "no problem was found", OK},
		{"one without its filter", answers("true", "false"), "speaker " + owner,
			"logs speaker-" + owner, Problem},
		{"filter off", answers(`{"Enforced": true}`, `"off"`), "", "no problem was found", OK},
		{"a speaker that does not answer", answers(`"Answered": true`, `"Answered": false`), "speaker " + owner,
			"logs speaker-" + owner, Problem},
		{"an address of another pool", func(s *Snapshot) {
			s.set(condition(v1beta1.ConditionAddressAssigned, lb.AddressKept,
				"keeps 192.0.2.1 until another can be had: pool \"x\" is full"))
		}, "address", "set `holdfast.dev/renew`", Note},
		{"a health port", answers("{", `{"Unserved": ["default/web"], `), "speaker " + owner,
			"look at kubectl -n holdfast-system logs speaker-" + owner, Problem},
		{"a probe's fault", func(s *Snapshot) {
			s.Probed = []Step{{Name: "wire at n3", Verdict: Problem, Text: "answers no machine", Do: "look at the switch"}}
		},
			"wire at n3", "look at the switch", Problem},
		{"no pod", func(s *Snapshot) { s.Objects.EndpointSlices = nil }, "endpoints", "labels app=web", Problem},
		{"no pod is ready", func(s *Snapshot) {
			for i := range s.Objects.EndpointSlices[0].Endpoints {
				s.Objects.EndpointSlices[0].Endpoints[i].Conditions.Ready = new(false)
			}
			s.set(condition(v1beta1.ConditionAnnouncedL2, lb.NoServingEndpoint, "no endpoint can serve", true))
		}, "layer 2", "describe pods -l app=web", Problem},
		{"a tenant", func(s *Snapshot) {
			*s = Snapshot{Now: moment, Options: s.Options, Objects: config.Objects{
				Services: s.Objects.Services, EndpointSlices: s.Objects.EndpointSlices,
			},
				Unread: map[string]string{
					Pools: "no right", Nodes: "no right", Pods: "no right", Leases: "no right", Controller: "no right",
					Speakers: "no right",
				}}
		}, "controller", "ask an operator", Unseen},
	} {
		s := healthy()
		tt.do(&s)
		r := s.explanationOf("default", "web").explain()
		got := Step{Verdict: OK}
		for _, step := range r.Steps {
			if got.Verdict == OK && step.Verdict != OK {
				got = step
			}
		}
		if got.Name != tt.step || got.Verdict != tt.verdict || !strings.Contains(r.First, tt.first) ||
			r.Healthy() != (tt.verdict != Problem) {
			t.Errorf("%s: %s is a %s, first: %s", tt.name, got.Name, got.Verdict, r.First)
		}
	}
}

// TestOtherDataPath: an explanation names it.
func TestOtherDataPath(t *testing.T) {
	s := healthy()
	s.Options.OtherDataPath = true
	r := s.explanationOf("default", "web").explain()
	named := func(step Step) bool { return step.Name == "filter" && strings.Contains(step.Text, "dataPath: Other") }
	if !r.Healthy() || !slices.ContainsFunc(r.Steps, named) {
		t.Errorf("%+v", r)
	}
}

// TestOthers: each kind of object answers, says what it lacks, and that it is absent.
func TestOthers(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		do         func(s *Snapshot)
		ask        func(s Snapshot) Report
	}{
		{"an address with a holder", "no problem", nil, func(s Snapshot) Report {
			return s.Address(netip.MustParseAddr("192.0.2.1"))[0]
		}},
		{"a free one", "ask for it", nil, func(s Snapshot) Report { return s.Address(netip.MustParseAddr("192.0.2.2"))[0] }},
		{"one of no pool", "ask for it", nil, func(s Snapshot) Report {
			return s.Address(netip.MustParseAddr("192.0.2.9"))[0]
		}},
		{"a pool", "no problem", nil, func(s Snapshot) Report { return s.Pool("lan") }},
		{"a full pool", "add addresses", func(s *Snapshot) {
			s.Objects.Pools[0].Status.AvailableIPv4 = 0
		}, func(s Snapshot) Report { return s.Pool("lan") }},
		{"an absent pool", "kubectl get ipaddresspools", nil, func(s Snapshot) Report { return s.Pool("x") }},
		{"an unread pool", "ask an operator", func(s *Snapshot) {
			s.Unread[Pools] = "no right"
		}, func(s Snapshot) Report { return s.Pool("x") }},
		{"a node", "no problem", nil, func(s Snapshot) Report { return s.Node("n1") }},
		{"a node without a speaker", "taints", func(s *Snapshot) {
			s.Pods = nil
		}, func(s Snapshot) Report { return s.Node("n1") }},
		{"a node that another misses", "Repair the node or its network", func(s *Snapshot) {
			s.States[1].Status.Unreachable = []v1beta1.SilentNode{{Node: "n1"}}
		}, func(s Snapshot) Report { return s.Node("n1") }},
		{"an absent peer", "kubectl get bgppeers", nil, func(s Snapshot) Report { return s.Peer("x") }},
		{"a peer", "wrong AS", func(s *Snapshot) {
			s.Objects.Peers = []*v1beta1.BGPPeer{{ObjectMeta: metav1.ObjectMeta{Name: "r"}}}
			s.States[0].Status.Sessions = []v1beta1.SessionState{{Peer: "r", State: v1beta1.SessionStateDown,
				LastError: "wrong AS"}}
		}, func(s Snapshot) Report { return s.Peer("r") }},
		{"the status", "no problem", nil, Snapshot.Status},
		{"the status without a session", "repair the session of node n1 with BGPPeer r: wrong AS", func(s *Snapshot) {
			s.States[0].Status.Sessions = []v1beta1.SessionState{{Peer: "r", State: v1beta1.SessionStateDown,
				LastError: "wrong AS"}}
		}, Snapshot.Status},
		{"the status without an announcement", "why default/web", setting(v1beta1.ConditionAnnouncedL2, lb.NoLink, ""),
			Snapshot.Status},
		{"the status without a password",
			"Write the password into the entry `password` of a Secret of type kubernetes.io/basic-auth", func(s *Snapshot) {
				p := &v1beta1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: v1beta1.BGPPeerSpec{MyASN: 1, PeerASN: 2,
					PeerAddress:    "192.0.2.9",
					PasswordSecret: &v1beta1.SecretReference{Name: "x"}}}
				p.Status.Conditions = []metav1.Condition{condition(v1beta1.ConditionValid, lb.PasswordMissing, "no Secret x", true)}
				s.Objects.Peers = []*v1beta1.BGPPeer{p}
			}, Snapshot.Status},
		{"the status with a bad pool", "IPAddressPool lan", func(s *Snapshot) {
			s.Objects.Pools[0].Spec.Addresses = []string{"x"}
		}, func(s Snapshot) Report {
			return Report{First: s.Status().Steps[0].Name}
		}},
	} {
		s := healthy()
		if tt.do != nil {
			tt.do(&s)
		}
		if r := tt.ask(s); !strings.Contains(r.First, tt.want) {
			t.Errorf("%s: %+v", tt.name, r)
		}
	}
}

// TestChange: what would change is said in the daemons' own decisions, and nothing else.
func TestChange(t *testing.T) {
	before := healthy()
	same := healthy()
	stranded := healthy()
	faulty := healthy()
	closed := healthy()
	stranded.Objects.Pools[0].Spec.Addresses = []string{"192.0.2.2"}
	faulty.Objects.Pools[0].Spec.Addresses = []string{"192.0.2.1-192.0.2.2", "nonsense"}
	closed.Objects.Services[0].Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
	other := healthy()
	other.Objects.Services = append(other.Objects.Services, other.Objects.Services[0].DeepCopy())
	other.Objects.Services[1].Name, other.Objects.Services[1].UID, other.Objects.Services[1].Status = "new", "new",
		corev1.ServiceStatus{}
	owner := ownerOf(before)
	unselected := healthy()
	unselected.Objects.L2Advertisements[0] = unselected.Objects.L2Advertisements[0].DeepCopy()
	unselected.Objects.L2Advertisements[0].Spec.IPAddressPools = []string{"former"}
	for _, tt := range []struct {
		name string
		got  Report
		want []string
	}{
		{"nothing", Compare(before, same, ""), []string{"changes: Nothing would change."}},
		{"a pool is cut", Compare(before, stranded, ""), []string{
			`default/web: Assigned: has 192.0.2.1 from pool "lan" -> Assigned: has 192.0.2.1, which is in no pool any more`}},
		{"an advertisement of another pool", Compare(before, unselected, ""), []string{
			`L2Advertisement lan: spec.ipAddressPools names IPAddressPool "former", which does not exist`,
			"IPAddressPool lan: addresses of the pool are held and not announced",
			"default/web: 192.0.2.1 by node " + owner + " -> not announced",
			"default/web by IPv4: 192.0.2.1 by node " + owner + " -> not announced"}},
		{"a bad range", Compare(before, faulty, ""), []string{"IPAddressPool lan"}},
		{"source ranges", Compare(before, closed, ""),
			[]string{"default/web: TCP/80 from everybody -> TCP/80 from 198.51.100.0/24"}},
		{"a new Service", Compare(before, other,
			""), []string{`default/new: NotServed: its class is not Holdfast's -> Assigned: has 192.0.2.2 from pool "lan"`,
			"default/new: not announced -> layer 2: none (NoServingEndpoint)", "default/new: closed -> TCP/80 from everybody"}},
		{"its owner is drained", Compare(before, before, owner),
			[]string{"default/web: 192.0.2.1 by node " + owner + " -> 192.0.2.1 by node"}},
	} {
		var got []string
		for _, step := range tt.got.Steps {
			if got = append(got, step.Details...); step.Details == nil {
				got = append(got, step.Name+": "+step.Text)
			}
		}
		if tt.got.Healthy() == (tt.name == "a bad range" || tt.name == "an advertisement of another pool") ||
			!slices.EqualFunc(got, tt.want, strings.HasPrefix) {
			t.Errorf("%s (-want +got):\n%s", tt.name, cmp.Diff(tt.want, got))
		}
	}
	before.Objects.EndpointSlices[0].Endpoints = before.Objects.EndpointSlices[0].Endpoints[:1]
	off := Compare(before, before, "n2")
	if len(off.Steps) != 2 || !strings.Contains(off.Steps[1].Details[0], string(lb.NoServingEndpoint)) || off.Healthy() ||
		!strings.HasPrefix(off.First, "before you drain n2, run ready pods") {
		t.Errorf("the node of the only endpoint is drained: %+v", off)
	}
}

// TestDocumentedShape: docs/kubectl.md shows every field that JSON has, and no other.
func TestDocumentedShape(t *testing.T) {
	page, err := os.ReadFile("../docs/kubectl.md")
	must(t, err)
	_, rest, _ := strings.Cut(string(page), "```json\n")
	documented, _, _ := strings.Cut(rest, "```")
	var reports []Report
	decoder := json.NewDecoder(strings.NewReader(documented))
	decoder.DisallowUnknownFields()
	must(t, decoder.Decode(&reports))
	text, err := json.Marshal(reports)
	must(t, err)
	var want, got any
	if err := errors.Join(json.Unmarshal([]byte(documented), &want), json.Unmarshal(text, &got)); err != nil ||
		!cmp.Equal(want, got) {
		t.Errorf("%v\n-want +got\n%s", err, cmp.Diff(want, got))
	}
	step := reflect.ValueOf(reports[0].Steps[0])
	for field, value := range step.Fields() {
		if field.IsExported() && value.IsZero() {
			t.Errorf("the page does not show the field %s of a step", field.Name)
		}
	}
}
