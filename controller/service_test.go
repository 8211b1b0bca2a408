package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestUpdate(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	holding := map[string]bool{v1beta1.FinalizerAddress: true, k8s.StandardFinalizer: true}
	const keep = "loadbalancer.openstack.org/keep-floatingip"
	const record, shown = v1beta1.AnnotationAssigned, v1beta1.AnnotationHostnameShown
	one := serviceInputs{assignment: &ipam.Assignment{
		Addresses: []netip.Addr{v4}, Record: lb.Origins{{Address: v4, Pool: "lan"}}, Reason: lb.Assigned,
	}}
	other := config.Options{OpenStack: openstack.Options{Ignore: true}}
	named := &lb.Service{}
	named.Hostname = "a.example.org"
	for _, tt := range []struct {
		name        string
		inputs      serviceInputs
		has         map[string]string
		options     config.Options
		conditions  string
		annotations map[string]string
		finalizers  map[string]bool
	}{
		{"assigned", serviceInputs{assignment: &ipam.Assignment{
			Addresses: []netip.Addr{v4, v6},
			Record:    lb.Origins{{Address: v4, Pool: "lan", Terms: "3x"}, {Address: v6, Pool: "lan6"}}, Reason: lb.Assigned,
		}}, nil, other, "AddressAssigned True Assigned, AddressRecord True Recorded",
			map[string]string{record: "for=ns/web,192.0.2.1=lan,2001:db8::1=lan6", shown: ""}, holding},
		{"pending, with an annotation that does nothing", serviceInputs{
			assignment: &ipam.Assignment{Reason: lb.PoolExhausted, Message: "full"},
			problems:   []lb.Problem{{Reason: lb.AnnotationIgnored, Message: "no proxy here", Note: true}},
		}, map[string]string{openstack.ID: "uid", keep: "true"}, config.Options{},
			"AddressAssigned False PoolExhausted, AnnotationsHonoured False AnnotationIgnored",
			map[string]string{record: "", shown: "", openstack.Address: "", openstack.ID: ""}, nil},
		{"a request that cannot be read is reported once", serviceInputs{
			assignment: &ipam.Assignment{Reason: lb.InvalidRequest, Message: "not an address"},
			problems:   []lb.Problem{{Reason: lb.InvalidRequest, Message: "not an address", Waits: true}},
		}, nil, other, "AddressAssigned False InvalidRequest", map[string]string{record: "", shown: ""}, nil},
		{"as OpenStack says it, with a host name", serviceInputs{
			serviceFacts: serviceFacts{compiled: named},
			assignment: &ipam.Assignment{
				Addresses: []netip.Addr{v4}, Record: lb.Origins{{Address: v4, Pool: "lan"}}, Reason: lb.AddressKept,
			},
		}, map[string]string{keep: "true"}, config.Options{},
			"AddressAssigned True AddressKept, AddressRecord True Recorded", map[string]string{
				record: "for=ns/web,192.0.2.1=lan", shown: "a.example.org", openstack.Address: "192.0.2.1", openstack.ID: "uid",
			}, holding},
		{
			"a copied manifest",
			one,
			map[string]string{
				record: "for=ns/original,192.0.2.9=lan", openstack.ID: "uid-original", openstack.Address: "192.0.2.9",
			},
			config.Options{}, "AddressAssigned True Assigned, AddressRecord True Recorded",
			map[string]string{record: "for=ns/web,192.0.2.1=lan", shown: "", openstack.Address: "", openstack.ID: ""},
			holding,
		},
		{"an address that another load balancer wrote",
			serviceInputs{assignment: &ipam.Assignment{
				Addresses: []netip.Addr{v4}, Pools: []string{""}, Reason: lb.ForeignAddress,
			}},
			nil, other, "AddressAssigned False ForeignAddress", map[string]string{record: "", shown: ""}, nil},
	} {
		sv := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "web", UID: "uid", Annotations: tt.has,
		}}
		if tt.inputs.compiled == nil {
			tt.inputs.compiled = &lb.Service{}
		}
		tt.inputs.assignment.Key = lb.Key{Namespace: "ns", Name: "web"}
		u := tt.inputs.update(sv, tt.options)
		var got []string
		for _, c := range u.Conditions {
			got = append(got, strings.TrimPrefix(c.Type, "holdfast.dev/")+" "+string(c.Status)+" "+c.Reason)
		}
		if got := strings.Join(got, ", "); got != tt.conditions {
			t.Errorf("%s: conditions %q, want %q", tt.name, got, tt.conditions)
		}
		if diff := cmp.Diff(tt.annotations, u.Annotations); diff != "" {
			t.Errorf("%s: annotations (-want +got):\n%s", tt.name, diff)
		}
		diff := cmp.Diff(tt.finalizers, u.Finalizers)
		if diff != "" || u.SetAddresses == (tt.inputs.assignment.Reason == lb.ForeignAddress) {
			t.Errorf("%s: finalizers (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestValid(t *testing.T) {
	pool := lb.Object{Kind: "IPAddressPool", Name: "lan"}
	fault := lb.Problem{Object: pool, Reason: lb.OverlappingAddresses, Message: "the older has it"}
	note := lb.Problem{Object: pool, Reason: lb.HostBitsIgnored, Message: "read as a network", Note: true}
	remedy := ". " + lb.OverlappingAddresses.Remedy()
	other := lb.Problem{Object: lb.Object{Kind: "IPAddressPool", Name: "wan"}, Reason: lb.InvalidAddresses, Message: "no"}
	for _, tt := range []struct {
		name     string
		problems []lb.Problem
		want     metav1.Condition
	}{
		{
			"no problem",
			[]lb.Problem{other},
			metav1.Condition{Status: "True", Reason: "Valid", Message: "all of the object is in force"},
		},
		{
			"a note",
			[]lb.Problem{note},
			metav1.Condition{Status: "True", Reason: "HostBitsIgnored", Message: "read as a network"},
		},
		{
			"a fault",
			[]lb.Problem{other, fault},
			metav1.Condition{Status: "False", Reason: "OverlappingAddresses", Message: "the older has it" + remedy},
		},
		{"a note before a fault", []lb.Problem{note, fault}, metav1.Condition{Status: "False", Reason: "OverlappingAddresses",
			Message: "read as a network; the older has it" + remedy}},
		{"a fault before a note", []lb.Problem{fault, note}, metav1.Condition{Status: "False", Reason: "OverlappingAddresses",
			Message: "the older has it; read as a network" + remedy}},
	} {
		tt.want.Type = v1beta1.ConditionValid
		if diff := cmp.Diff(tt.want, validCondition(pool, tt.problems)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// peering is a cluster whose nodes have speakers with sessions, as the API server shows it.
type peering struct {
	clock    time.Time
	peer     lb.Peer
	nodes    map[string]lb.Node
	states   []*v1beta1.SpeakerState
	notReady map[string]bool
}

// newPeering makes nodes with a session with peer r each, alternately in the racks a and b.
func newPeering(nodes int) *peering {
	p := &peering{
		clock: time.Unix(1_000_000, 0), notReady: map[string]bool{}, peer: lb.Peer{Name: "r"},
		nodes: map[string]lb.Node{},
	}
	for i := range nodes {
		name := fmt.Sprintf("w%d", i+1)
		p.nodes[name] = lb.Node{Name: name, Labels: map[string]string{"rack": string(rune('a' + i%2))}}
		p.states = append(p.states, &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{Name: name}})
		p.session(i+1, v1beta1.SessionState{State: v1beta1.SessionStateEstablished})
	}
	return p
}

// session makes the speaker of a node report its session with r.
func (p *peering) session(node int, state v1beta1.SessionState) {
	state.Peer = "r"
	p.states[node-1].Status.Sessions = []v1beta1.SessionState{state}
}

func (p *peering) down(node int, why string) {
	p.session(node, v1beta1.SessionState{State: v1beta1.SessionStateDown, LastError: why})
}

// miss makes speakers report that they do not hear a node.
func (p *peering) miss(node string, by ...int) {
	for _, i := range by {
		p.states[i-1].Status.Silent = append(p.states[i-1].Status.Silent, v1beta1.SilentNode{Node: node})
	}
}

// says returns the status of peer r when all speakers have just written.
func (p *peering) says() string {
	r := reportTimes{}
	for _, s := range p.states {
		r[s.Name] = lastReport{at: p.clock}
	}
	v := r.sessionView(p.clock, p.states, p.notReady)
	count, c := v.establishedCondition(&p.peer, v.nodesOf(&p.peer, p.nodes))
	return fmt.Sprintf("%s %s=%s %s: %s", count, c.Type, c.Status, c.Reason, c.Message)
}

// TestSessions: the number of sessions that a peer has and should have, the nodes without one, and the reasons.
func TestSessions(t *testing.T) {
	const refused = "cannot connect: connection refused"
	for _, tt := range []struct {
		name   string
		nodes  int
		change func(*peering)
		want   string
	}{
		{"all are up", 3, func(*peering) {}, "3/3 Established=True SessionEstablished: established on 3 of 3 nodes"},
		{
			"one is down",
			3, func(p *peering) { p.down(2, refused) },
			"2/3 Established=False SessionDown: established on 2 of 3 nodes; not on w2: " + refused,
		},
		{"the router is down", 7, func(p *peering) {
			for i := range 7 {
				p.down(i+1, refused)
			}
		},
			"0/7 Established=False SessionDown: established on 0 of 7 nodes; not on w1, w2, w3, w4, w5 and 2 more: " + refused},
		{"many causes, the commonest first", 7, func(p *peering) {
			p.down(1, "a")
			p.down(2, "b")
			p.down(3, "c")
			p.down(4, "c")
			p.down(5, "d")
		},
			"2/7 Established=False SessionDown: established on 2 of 7 nodes; not on w3, w4: c; not on w1: a; " +
				"not on w2: b; not on 1 more for other reasons"},
		{
			"it begins to connect",
			2, func(p *peering) { p.down(2, "") },
			"1/2 Established=Unknown SessionConnecting: established on 1 of 2 nodes; not on w2: it is connecting",
		},
		{"a speaker does not know the peer yet", 2, func(p *peering) { p.states[1].Status.Sessions = nil },
			"1/2 Established=Unknown SessionConnecting: established on 1 of 2 nodes; not on w2: it is connecting"},
		{"one connects, one has failed", 3, func(p *peering) { p.down(1, ""); p.down(2, refused) },
			"1/3 Established=False SessionDown: established on 1 of 3 nodes; not on w1: it is connecting; not on w2: " +
				refused},
		{"a router words its refusal as if it connected", 1, func(p *peering) { p.down(1, "it is connecting") },
			"0/1 Established=False SessionDown: established on 0 of 1 nodes; not on w1: it is connecting"},
		{"only some nodes", 4, func(p *peering) {
			p.peer.NodeSelectors = []lb.Selector{{{Key: "rack", Operator: lb.In, Values: []string{"a"}}}}
			p.down(2, "not wanted")
		}, "2/2 Established=True SessionEstablished: established on 2 of 2 nodes"},
		{"no node", 4, func(p *peering) {
			p.peer.NodeSelectors = []lb.Selector{{{Key: "rack", Operator: lb.In, Values: []string{"c"}}}}
		}, "0/0 Established=False NoNodeSelected: nodeSelectors select no node that has a speaker"},
		{
			"a node that is gone",
			2, func(p *peering) { delete(p.nodes, "w2") },
			"1/1 Established=True SessionEstablished: established on 1 of 1 nodes",
		},
		{
			"a node where the peer cannot be used",
			2, func(p *peering) { p.peer.Unusable = map[string]lb.Reason{"w2": lb.PeerIsSelf} },
			"1/2 Established=False SessionDown: established on 1 of 2 nodes; not on w2: PeerIsSelf: see the condition Valid",
		},
		{"a node that most others miss", 4, func(p *peering) { p.miss("w4", 1, 2, 3) },
			"3/4 Established=False SessionDown: established on 3 of 4 nodes; not on w4: its speaker is not heard"},
		{"a node that one names twice, and itself", 3, func(p *peering) {
			p.miss("w3", 1, 3)
			p.states[0].Status.Unreachable = p.states[0].Status.Silent
		}, "3/3 Established=True SessionEstablished: established on 3 of 3 nodes"},
		{"a node that misses most others", 4, func(p *peering) { p.miss("w1", 4); p.miss("w2", 4); p.miss("w3", 4) },
			"4/4 Established=True SessionEstablished: established on 4 of 4 nodes"},
		{"one of two is dead", 2, func(p *peering) { p.miss("w2", 1); p.notReady["w2"] = true },
			"1/2 Established=False SessionDown: established on 1 of 2 nodes; not on w2: its speaker is not heard"},
		{
			"a kubelet is dead",
			3, func(p *peering) { p.notReady["w2"] = true },
			"3/3 Established=True SessionEstablished: established on 3 of 3 nodes",
		},
		{"the only node is dead", 1, func(p *peering) { p.notReady["w1"] = true },
			"0/1 Established=False SessionDown: established on 0 of 1 nodes; not on w1: its speaker is not heard"},
		{"a session carries less than it should", 2, func(p *peering) {
			p.session(2, v1beta1.SessionState{State: v1beta1.SessionStateEstablished, Withheld: "no IPv6 next hop"})
		},
			"2/2 Established=True SessionEstablished: established on 2 of 2 nodes; " +
				"with less than it should carry on w2: no IPv6 next hop"},
		{"a hostile text", 1, func(p *peering) { p.down(1, "\x1b[2J\n"+strings.Repeat("x", 100_000)) },
			"0/1 Established=False SessionDown: established on 0 of 1 nodes; not on w1:  [2J " +
				strings.Repeat("x", 503) + " …"},
	} {
		p := newPeering(tt.nodes)
		tt.change(p)
		_, rest, _ := strings.Cut(tt.want, " Established=")
		_, rest, _ = strings.Cut(rest, " ")
		reason, _, _ := strings.Cut(rest, ":")
		if got, want := p.says(), lb.WithRemedies(tt.want, lb.Reason(reason)); got != want {
			t.Errorf("%s:\n got %q\nwant %q", tt.name, got, want)
		}
	}
}

// TestPeerStatus: the status of a BGPPeer is written once, and again only if it changes. It stays until the
// SpeakerStates are read, and after another replica led.
func TestPeerStatus(t *testing.T) {
	const peersPath = "/apis/holdfast.dev/v1beta1/bgppeers"
	spec := v1beta1.BGPPeerSpec{MyASN: 64600, PeerASN: 64512, PeerAddress: "192.0.2.1"}
	server := newServer(t, &v1beta1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Spec: spec})
	spec.PasswordSecret = &v1beta1.SecretReference{Name: "missing"}
	server.put(t, &v1beta1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: "bad"}, Spec: spec})
	for _, name := range []string{"w1", "w2"} {
		server.put(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		state := &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{Name: name}}
		state.Status.Observed = new(v1beta1.NewMicroTime(time.Now()))
		state.Status.Sessions = []v1beta1.SessionState{{Peer: "r", State: v1beta1.SessionStateEstablished}}
		server.put(t, state)
	}
	s := newTestSyncer(t, server)
	read := func(name string) string {
		var p v1beta1.BGPPeer
		server.get(t, peersPath+"/"+name, &p)
		c := meta.FindStatusCondition(p.Status.Conditions, v1beta1.ConditionEstablished)
		if c == nil {
			return p.Status.Sessions
		}
		return fmt.Sprintf("%s %s %s: %s", p.Status.Sessions, c.Status, c.Reason, c.Message)
	}
	expect := func(when, want string, writes int) {
		t.Helper()
		syncOnce(t, s)
		got := 0
		for _, at := range server.landed() {
			if at == peersPath+"/r/status" {
				got++
			}
		}
		if status := read("r"); status != want || got != writes {
			t.Errorf("%s: %q after %d writes, want %q after %d", when, status, got, want, writes)
		}
	}
	clock := time.Now()
	look := func() {
		t.Helper()
		must(t, s.cluster.WaitForSpeakerStates(t.Context()))
		s.speakers.observe(clock, s.cluster.APITime(clock), s.cluster.Nodes(), s.cluster.SpeakerStates())
	}
	expect("before the first look", "", 1) // Valid
	look()
	const both = "2/2 True SessionEstablished: established on 2 of 2 nodes"
	expect("after it", both, 1)
	expect("again", both, 0)
	if want := " False PasswordMissing: no node has a session: the condition Valid says why"; read("bad") != want {
		t.Errorf("a peer that cannot be used: %q, want %q", read("bad"), want)
	}
	s.speakers = speakerView{}
	expect("after another replica led", both, 0)
	clock = clock.Add(staleTime)
	look()
	expect("after the same was read again", both, 0)
	clock = clock.Add(staleTime)
	expect("the speakers are silent, before the next look", both, 0)
	look()
	expect("after that look", "0/2 False SessionDown: established on 0 of 2 nodes; not on w1, w2: "+
		"its speaker has reported nothing for 25 minutes. "+lb.SessionDown.Remedy(), 1)
}

// create makes a Service without an address, younger than those before it.
func (s *apiServer) create(t *testing.T, name string) {
	t.Helper()
	sv := loadBalancer(name)
	sv.CreationTimestamp = metav1.Unix(int64(s.version), 0)
	s.put(t, sv)
}

// TestNamespaceSeenLate: a Service that is seen before its namespace waits for it, and gets an address of the pool that
// selects the namespace.
func TestNamespaceSeenLate(t *testing.T) {
	tenants, open := lan(), lan()
	tenants.Name, open.Name, open.UID = "tenants", "open", "uid-open"
	tenants.Spec.ServiceAllocation = &v1beta1.ServiceAllocation{NamespaceSelectors: []metav1.LabelSelector{{
		MatchLabels: map[string]string{"team": "a"},
	}}}
	open.Spec.Addresses = []string{"198.51.100.0/24"}
	server := newServer(t, tenants, open)
	s := newTestSyncer(t, server)
	server.create(t, "web")
	var web corev1.Service
	for _, want := range []string{"", "192.0.2.0"} {
		refreshed(t, s)
		server.get(t, servicesPath+"/web", &web)
		in := web.Status.LoadBalancer.Ingress
		if len(in) > 1 || len(in) == 0 != (want == "") || len(in) == 1 && in[0].IP != want {
			t.Errorf("web has %v, want %q", in, want)
		}
		server.put(t,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				Name: "default", UID: "default", Labels: map[string]string{"team": "a"},
			}})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
