package config

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/apitest"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func peerObject(name string, second int64, changes ...func(*v1beta1.BGPPeerSpec)) *v1beta1.BGPPeer {
	o := &v1beta1.BGPPeer{ObjectMeta: meta(name, second), Spec: v1beta1.BGPPeerSpec{
		MyASN: 64600, PeerASN: 64512, PeerAddress: "172.31.0.1",
	}}
	for _, change := range changes {
		change(&o.Spec)
	}
	return o
}

// unnumbered is a peer on a link.
func unnumbered(name string, second int64, link string, changes ...func(*v1beta1.BGPPeerSpec)) *v1beta1.BGPPeer {
	o := peerObject(name, second, changes...)
	o.Spec.PeerAddress, o.Spec.Interface = "", link
	return o
}

func nodeObject(name, zone string, addresses ...string) *corev1.Node {
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}}}
	for _, a := range addresses {
		o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return o
}

func seconds(n float64) *metav1.Duration {
	return &metav1.Duration{Duration: time.Duration(n * float64(time.Second))}
}

func TestPeer(t *testing.T) {
	no := false
	s, problems := Compile(Objects{Peers: []*v1beta1.BGPPeer{
		peerObject("default", 1),
		peerObject("full", 2, func(s *v1beta1.BGPPeerSpec) {
			s.MyASN = 4200000000
			s.PeerASN = 4294967295
			s.PeerAddress = "2001:db8::1"
			s.PeerPort = 1179
			s.SourceAddress = "2001:db8::2"
			s.RouterID = "192.0.2.1"
			s.EBGPMultiHop = true
			s.EnableGracefulRestart = &no
			s.HoldTime, s.KeepaliveTime, s.ConnectTime = seconds(4), seconds(1.5), seconds(65535)
			s.NodeSelectors = []metav1.LabelSelector{badSelector()}
		}),
		peerObject("seen as another", 3, func(s *v1beta1.BGPPeerSpec) {
			s.PeerASN = 0
			s.DynamicASN = "external"
			s.LocalASN = 65010
			s.PeerAddress = "172.31.0.3"
			s.DualStackAddressFamily, s.TTLSecurity, s.Password = true, 1, "Geheim-7"
		}),
		peerObject("within", 4, func(s *v1beta1.BGPPeerSpec) {
			s.PeerASN = 0
			s.DynamicASN = "internal"
			s.PeerAddress = "172.31.0.4"
			s.TTLSecurity = 2
			s.KeepaliveTime = seconds(0)
		}),
		unnumbered("unnumbered", 5, "eth0.7"),
	}}, Options{})
	peer := func(p lb.Peer) lb.Peer {
		p.Port = 179
		p.HoldTime = 90 * time.Second
		p.KeepaliveTime = 30 * time.Second
		p.ConnectTime = 2 * time.Second
		p.GracefulRestart = true
		return p
	}
	want := []lb.Peer{
		peer(lb.Peer{Name: "default", LocalASN: 64600, PeerASN: 64512, Address: netip.MustParseAddr("172.31.0.1")}),
		{
			Name: "full", LocalASN: 4200000000, PeerASN: 4294967295, Address: netip.MustParseAddr("2001:db8::1"), Port: 1179,
			SourceAddress: netip.MustParseAddr("2001:db8::2"), RouterID: netip.MustParseAddr("192.0.2.1"), MultiHop: true,
			HoldTime: 4 * time.Second, KeepaliveTime: 1500 * time.Millisecond, ConnectTime: 65535 * time.Second,
			NodeSelectors: []lb.Selector{{{Operator: lb.In}}},
		},
		peer(lb.Peer{
			Name: "seen as another", LocalASN: 65010, PeerASN: 0, Address: netip.MustParseAddr("172.31.0.3"),
			DualStack: true, MinTTL: 255, Password: "Geheim-7",
		}),
		peer(lb.Peer{Name: "unnumbered", LocalASN: 64600, PeerASN: 64512, Interface: "eth0.7", DualStack: true}),
		peer(lb.Peer{
			Name: "within", LocalASN: 64600, PeerASN: 64600, Address: netip.MustParseAddr("172.31.0.4"), MinTTL: 254,
		}),
	}
	same(t, "peers", want, s.Peers, addrs(), cmpopts.EquateEmpty())
	wantProblems := []string{
		`BGPPeer full InvalidSelector: spec.nodeSelectors[0] matches nothing: "Near" is not a valid label selector operator`,
	}
	same(t, "problems", wantProblems, problemTexts(problems))
}

// TestInvalidPeer: mistakes that the schema does not refuse.
func TestInvalidPeer(t *testing.T) {
	type spec = v1beta1.BGPPeerSpec
	for _, tt := range []struct {
		change func(*spec)
		want   string
	}{
		{func(s *spec) { s.PeerAddress = "router" }, `peerAddress "router" is not an IPv4 or IPv6 address`},
		{
			func(s *spec) { s.PeerAddress = "::ffff:192.0.2.1" },
			`peerAddress "::ffff:192.0.2.1" is an IPv4 address in IPv6 form: write 192.0.2.1`,
		},
		{func(s *spec) { s.PeerAddress = "0.0.0.0" }, "peerAddress 0.0.0.0 is not the unicast address of a router or node"},
		{func(s *spec) { s.PeerAddress = "::1" }, "peerAddress ::1 is not the unicast address of a router or node"},
		{
			func(s *spec) { s.PeerAddress = "224.0.0.5" },
			"peerAddress 224.0.0.5 is not the unicast address of a router or node",
		},
		{
			func(s *spec) { s.PeerAddress = "255.255.255.255" },
			"peerAddress 255.255.255.255 is not the unicast address of a router or node",
		},
		{
			func(s *spec) { s.PeerAddress = "fe80::1" },
			"peerAddress fe80::1 is link-local and needs a link to be dialled on: write a global or unique local " +
				"address, or interface",
		},
		{
			func(s *spec) { s.SourceAddress = "ff02::1" },
			"sourceAddress ff02::1 is not the unicast address of a router or node",
		},
		{
			func(s *spec) { s.RouterID = "0.0.0.0" },
			`routerID "0.0.0.0" must have the form of an IPv4 address other than 0.0.0.0`,
		},
		{func(s *spec) { s.HoldTime = seconds(9.8) }, "holdTime must be whole seconds: write 10s"},
		{func(s *spec) { s.KeepaliveTime = seconds(91) }, "keepaliveTime must not be longer than holdTime, which is 1m30s"},
		{func(s *spec) {
			s.HoldTime = seconds(9)
			s.KeepaliveTime = seconds(10)
		}, "keepaliveTime must not be longer than holdTime, which is 9s"},
	} {
		t.Run(tt.want, func(t *testing.T) {
			s, problems := Compile(Objects{Peers: []*v1beta1.BGPPeer{
				peerObject("bad", 1, tt.change),
				peerObject("good", 2, func(s *spec) { s.PeerAddress = "172.31.0.2" }),
			}}, Options{})
			if len(s.Peers) != 1 || s.Peers[0].Name != "good" {
				t.Errorf("peers in force: %v", s.Peers)
			}
			same(t, "problems", []string{"BGPPeer bad InvalidPeer: not used: " + tt.want}, problemTexts(problems))
		})
	}
}

func TestPeerConflicts(t *testing.T) {
	zone := func(z string) func(*v1beta1.BGPPeerSpec) {
		return func(s *v1beta1.BGPPeerSpec) {
			s.NodeSelectors = []metav1.LabelSelector{labelled(map[string]string{"zone": z})}
		}
	}
	at := func(address, routerID string) func(*v1beta1.BGPPeerSpec) {
		return func(s *v1beta1.BGPPeerSpec) { s.PeerAddress, s.RouterID = address, routerID }
	}
	nodes := []*corev1.Node{
		nodeObject("n1", "a", "172.30.0.11", "fd00:30::11"), nodeObject("n2", "b", "172.30.0.12"),
		nodeObject("n3", "a", "172.30.0.13"), nodeObject("n4", "a"), nodeObject("n5", "a"),
	}
	for _, tt := range []struct {
		name     string
		peers    []*v1beta1.BGPPeer
		want     map[string]map[string]lb.Reason
		problems []string
	}{
		{"a node is the router: the others may dial it", []*v1beta1.BGPPeer{peerObject("p", 1, at("fd00:30::11", ""))},
			map[string]map[string]lb.Reason{"p": {"n1": lb.PeerIsSelf}},
			[]string{"BGPPeer p PeerIsSelf: not used on n1: peerAddress fd00:30::11 is that node's own"}},
		{"kept out by selector", []*v1beta1.BGPPeer{peerObject("p", 1, at("172.30.0.11", ""), zone("b"))},
			map[string]map[string]lb.Reason{"p": nil}, nil},
		{"one address twice: where both are, whatever the port", []*v1beta1.BGPPeer{
			peerObject("young", 2, func(s *v1beta1.BGPPeerSpec) { s.PeerPort = 1179 }), peerObject("old", 1, zone("a"))},
			map[string]map[string]lb.Reason{"old": nil, "young": {
				"n1": lb.DuplicatePeer, "n3": lb.DuplicatePeer, "n4": lb.DuplicatePeer, "n5": lb.DuplicatePeer,
			}},
			[]string{
				`BGPPeer young DuplicatePeer: not used on n1, n3, n4, n5: BGPPeer "old" is older and has peerAddress 172.31.0.1 there`,
			}},
		{
			"one address twice on disjoint nodes",
			[]*v1beta1.BGPPeer{peerObject("x", 1, zone("a")), peerObject("y", 2, zone("b"))},
			map[string]map[string]lb.Reason{"x": nil, "y": nil}, nil,
		},
		{
			"one link twice, and another link",
			[]*v1beta1.BGPPeer{unnumbered("old", 1, "eth0", zone("a")), unnumbered("young", 2, "eth0"),
				unnumbered("other", 3, "eth1")},
			map[string]map[string]lb.Reason{
				"old":   nil,
				"young": {"n1": lb.DuplicatePeer, "n3": lb.DuplicatePeer, "n4": lb.DuplicatePeer, "n5": lb.DuplicatePeer},
				"other": nil,
			},
			[]string{
				`BGPPeer young DuplicatePeer: not used on n1, n3, n4, n5: BGPPeer "old" is older and has interface eth0 there`,
			},
		},
		{"two router IDs on one node", []*v1beta1.BGPPeer{
			peerObject("x", 1, at("172.31.0.1", "192.0.2.1"), zone("b")), peerObject("y", 2, at("172.31.0.2", "")),
			peerObject("z", 3, at("172.31.0.3", "192.0.2.2")),
		},
			map[string]map[string]lb.Reason{"x": nil, "y": nil, "z": {"n2": lb.ConflictingRouterID}},
			[]string{
				`BGPPeer z ConflictingRouterID: not used on n2: BGPPeer "x" is older and gives routerID 192.0.2.1 there, and a node has one`,
			}},
		{"a peer that is not used there bars no other peer", []*v1beta1.BGPPeer{
			peerObject("bad", 1, func(s *v1beta1.BGPPeerSpec) { s.PeerAddress = "::1" }), peerObject("good", 2)},
			map[string]map[string]lb.Reason{"good": nil},
			[]string{"BGPPeer bad InvalidPeer: not used: peerAddress ::1 is not the unicast address of a router or node"}},
	} {
		s, problems := Compile(Objects{Peers: tt.peers, Nodes: nodes}, Options{})
		got := map[string]map[string]lb.Reason{}
		for _, p := range s.Peers {
			got[p.Name] = p.Unusable
		}
		same(t, tt.name, tt.want, got, cmpopts.EquateEmpty())
		same(t, tt.name+": problems", tt.problems, problemTexts(problems))
	}
}

// checkSchema checks that the API server refuses a spec with an error that contains these words, or admits it.
func checkSchema(t *testing.T, kind, spec, want string) {
	t.Helper()
	all, err := apitest.Read()
	must(t, err)
	body, err := yaml.YAMLToJSON([]byte("{apiVersion: holdfast.dev/v1beta1, kind: " + kind +
		", metadata: {name: x}, spec: {" + spec + "}}"))
	must(t, err)
	err = all[slices.IndexFunc(all, func(c apitest.CRD) bool { return c.Kind == kind })].Check(body)
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("{%s}: %v, want %q", spec, err, want)
	}
}

// The API server refuses contradictions, each with a message.
func TestPeerSchema(t *testing.T) {
	const plain = "myASN: 64600, peerASN: 64512, peerAddress: 172.31.0.9"
	for _, tt := range []struct{ spec, want string }{
		{plain, ""},
		{plain + ", ttlSecurity: 1, password: x, dualStackAddressFamily: true, localASN: 65010, vrf: ''", ""},
		{plain + ", passwordSecret: {name: x, namespace: holdfast-system}", ""},
		{"myASN: 64600, dynamicASN: external, peerAddress: 172.31.0.9, ebgpMultiHop: true, localASN: 65010", ""},
		{"myASN: 64600, dynamicASN: internal, peerAddress: 172.31.0.9", ""},
		{"myASN: 64600, dynamicASN: external, interface: eth0.100, password: x, ttlSecurity: 1", ""},
		{plain + ", interface: eth0", "write either peerAddress, or interface"},
		{"myASN: 64600, peerASN: 64512", "write either peerAddress, or interface"},
		{
			"myASN: 64600, peerASN: 64512, interface: eth0, sourceAddress: 172.31.0.1",
			"interface and sourceAddress exclude each other",
		},
		{
			"myASN: 64600, peerASN: 64512, interface: eth0, ebgpMultiHop: true",
			"interface and ebgpMultiHop exclude each other",
		},
		{"myASN: 64600, peerASN: 64512, interface: 'eth0 remote-as'", "should match"},
		{"myASN: 64600, peerASN: 64512, interface: abcdefghijklmnop", "may not be more than 15"},
		{"myASN: 64600, peerASN: 64512, interface: ''", "should match"},
		{plain + ", vrf: red", "sessions within a VRF are not served"},
		{plain + ", dynamicASN: external", "write either peerASN, or dynamicASN"},
		{"myASN: 64600, peerAddress: 172.31.0.9", "write either peerASN, or dynamicASN"},
		{"myASN: 64600, dynamicASN: any, peerAddress: 172.31.0.9", "Unsupported value"},
		{
			"myASN: 64600, dynamicASN: internal, peerAddress: 172.31.0.9, ebgpMultiHop: true",
			"ebgpMultiHop is for peers of another AS",
		},
		{
			"myASN: 64600, dynamicASN: internal, peerAddress: 172.31.0.9, localASN: 65010",
			"localASN is for peers of another AS",
		},
		{plain + ", localASN: 64512", "localASN is for peers of another AS"},
		{"myASN: 64600, peerASN: 64600, peerAddress: 172.31.0.9, localASN: 65010", "localASN is for peers of another AS"},
		{plain + ", ttlSecurity: 255", "less than or equal to 254"},
		{plain + ", ttlSecurity: 1, ebgpMultiHop: true", "ttlSecurity and ebgpMultiHop exclude each other"},
		{plain + ", password: x, passwordSecret: {name: z}", "write either password or passwordSecret"},
		{plain + ", password: 'a b'", ""},
		{plain + ", password: 'a '", "should match"},
		{plain + ", password: ' a'", "should match"},
		{plain + ", password: 'ä'", "should match"},
		{plain + ", passwordSecret: {}, disableMP: false, keepaliveTime: 0s", ""},
		{plain + ", passwordSecret: {}, password: x, disableMP: true", ""},
		{plain + ", password: ''", "at least 1"},
		{plain + ", password: " + strings.Repeat("x", 81), "may not be more than 80"},
		{plain + ", localASN: 4294967296", "less than or equal to 4294967295"},
		{plain + ", peerPort: 65536", "less than or equal to 65535"},
		{plain + ", sourceAddress: '2001:db8::1'", "must be of one IP family"},
		{plain + ", holdTime: 2s", "holdTime must be between 3s and 65535s"},
		{plain + ", holdTime: 65536s", "holdTime must be between 3s and 65535s"},
		{plain + ", keepaliveTime: 500ms", "keepaliveTime must be at least 1s"},
		{plain + ", connectTime: 500ms", "connectTime must be between 1s and 65535s"},
		{"myASN: 0, peerASN: 64512, peerAddress: 172.31.0.9", "greater than or equal to 1"},
		{"myASN: 64600, peerASN: 64512, peerAddress: '::ffff:192.0.2.1'", "peerAddress must be an IPv4 or IPv6 address"},
		{plain + ", passwordSecret: {namespace: z}", "passwordSecret needs the name of the Secret"},
		{plain + ", passwordSecret: {name: ''}", "at least 1"},
	} {
		checkSchema(t, KindPeer, tt.spec, tt.want)
	}
}
