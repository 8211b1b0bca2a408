package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNodeSelector(t *testing.T) {
	const openStack = openstack.NodeSelector
	nodes := map[string]map[string]string{
		"a": {"zone": "a", "ssd": ""}, "b": {"zone": "b"}, "c": {"zone": "c", "ssd": "", "spare": "yes"},
	}
	for _, tt := range []struct {
		name     string
		pairs    []string
		want     string
		reported string
	}{
		{"none", nil, "abc", ""},
		{"blank", []string{AnnotationNodeSelector, " "}, "abc", ""},
		{"value", []string{AnnotationNodeSelector, "zone=a"}, "a", ""},
		{"set", []string{AnnotationNodeSelector, "zone in (a, c), !spare"}, "a", ""},
		{"not", []string{AnnotationNodeSelector, "zone!=a"}, "bc", ""},
		{"unreadable selects nothing", []string{AnnotationNodeSelector, "zone in ("}, "", "selects no node"},
		{"comparison", []string{AnnotationNodeSelector, "cores>4"}, "", "selects no node"},
		{"OpenStack's", []string{openStack, "zone=c,ssd"}, "c", ""},
		{"OpenStack's key alone", []string{openStack, "ssd"}, "ac", ""},
		{"OpenStack's, unreadable", []string{openStack, "=="}, "", "selects no node"},
		{"own word wins", []string{AnnotationNodeSelector, "zone=a", openStack, "zone=b"}, "a", "overrides"},
	} {
		s, problems := Compile(Objects{Services: []*corev1.Service{serviceObject("s", asking(tt.pairs...))}}, served())
		got := ""
		for _, n := range []string{"a", "b", "c"} {
			if selectors := s.Services[0].NodeSelectors; len(selectors) == 0 || lb.MatchesAny(selectors, nodes[n]) {
				got += n
			}
		}
		var reported strings.Builder
		for _, p := range problems {
			reported.WriteString(p.Message)
		}
		differs := got != tt.want || !strings.Contains(reported.String(), tt.reported) ||
			(tt.reported == "") != (reported.String() == "")
		if differs {
			t.Errorf("%s: selects %q, says %q; want %q and %q", tt.name, got, reported.String(), tt.want, tt.reported)
		}
	}
}

func FuzzNodeSelector(f *testing.F) {
	for _, seed := range []string{"a", "a=b", "a in (b,c),!d", "a notin (", "a>1", ",", "!", "a==b"} {
		f.Add(seed)
	}
	f.Fuzz(func(_ *testing.T, text string) {
		if s, err := ParseNodeSelector(text); err == nil {
			s.Matches(map[string]string{"a": "b"})
		}
	})
}

func TestDraining(t *testing.T) {
	deletedAt := metav1.Unix(1, 0)
	tainted := func(key string) corev1.Node {
		return corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoSchedule}}}}
	}
	ready := func(status corev1.ConditionStatus, message string) corev1.Node {
		return corev1.Node{
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: status, Message: message,
			}}},
		}
	}
	const shutdown = "[container runtime is down, node is shutting down]"
	for _, tt := range []struct {
		name string
		node corev1.Node
		want bool
	}{
		{"well", corev1.Node{}, false},
		{"goes down", ready(corev1.ConditionFalse, shutdown), true},
		{"is back", ready(corev1.ConditionTrue, shutdown), false},
		{"not ready", ready(corev1.ConditionFalse, "container runtime is down"), false},
		{"cordoned", corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}, true},
		{"being deleted", corev1.Node{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &deletedAt}}, true},
		{"chosen by the autoscaler", tainted("ToBeDeletedByClusterAutoscaler"), true},
		{"control plane", tainted("node-role.kubernetes.io/control-plane"), false},
		{"out of reach of the API server", tainted(corev1.TaintNodeUnreachable), false},
	} {
		tt.node.Name = "n"
		s, _ := Compile(Objects{Nodes: []*corev1.Node{&tt.node}}, served())
		if got := s.Nodes["n"].Draining; got != tt.want {
			t.Errorf("%s: draining is %v, want %v", tt.name, got, tt.want)
		}
		if got := s.Nodes["n"].ShuttingDown; got != (tt.name == "goes down") {
			t.Errorf("%s: shutting down is %v", tt.name, got)
		}
	}
}

func poolsOfCloud() []*v1beta1.IPAddressPool {
	a := poolObject("public-a", 1, "192.0.2.0/28")
	a.Spec.Aliases, a.Spec.Tags, a.Spec.Classes = []string{"net-1", "subnet-a"}, []string{"fast", "cheap"}, []string{"dmz"}
	b := poolObject("public-b", 2, "192.0.2.16/28")
	b.Spec.Aliases, b.Spec.Tags = []string{"net-1", "subnet-b"}, []string{"fast"}
	c := poolObject("inner", 3, "10.1.0.0/28")
	c.Spec.Scope, c.Spec.Aliases = v1beta1.ScopeInternal, []string{"net-2"}
	return []*v1beta1.IPAddressPool{a, b, c}
}

func asking(pairs ...string) func(*corev1.Service) {
	return func(o *corev1.Service) {
		o.Annotations = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			o.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

// TestTranslate: OpenStack's annotations that mean the same as ours, and its defaults; all of them may be ignored.
func TestTranslate(t *testing.T) {
	opt := served()
	opt.OpenStack.Internal = true
	var err error
	if opt.NodeSelector, err = ParseNodeSelector("edge=yes"); err != nil {
		t.Fatal(err)
	}
	if none, err := ParseNodeSelector(""); none != nil || err != nil {
		t.Errorf("no selector is %v, %v", none, err)
	}
	edge := []lb.Selector{opt.NodeSelector}
	for _, tt := range []struct {
		name     string
		pairs    []string
		internal bool
		nodes    []lb.Selector
		reported string
	}{
		{"nothing", nil, true, edge, ""},
		{"a remark", []string{openstack.Internal, "false"}, true, edge, "Services of this cluster are internal"},
		{"our external", []string{AnnotationInternal, "false"}, false, edge, ""},
		{"all nodes", []string{openstack.NodeSelector, ""}, true, nil, ""},
		{
			"other nodes",
			[]string{openstack.NodeSelector, "rack"}, true, []lb.Selector{{{Key: "rack", Operator: lb.Exists}}}, "",
		},
		{
			"other nodes by our annotation",
			[]string{AnnotationNodeSelector, "rack"}, true, []lb.Selector{{{Key: "rack", Operator: lb.Exists}}}, "",
		},
	} {
		s, problems := Compile(Objects{Services: []*corev1.Service{serviceObject("s", asking(tt.pairs...))}}, opt)
		w := s.Services[0].Wish
		if diff := cmp.Diff(tt.nodes, w.NodeSelectors, cmpopts.EquateEmpty()); diff != "" || w.Internal != tt.internal {
			t.Errorf("%s: internal %v, nodes -want +got\n%s", tt.name, w.Internal, diff)
		}
		got := strings.Join(problemTexts(problems), "")
		if !strings.Contains(got, tt.reported) || tt.reported == "" && got != "" {
			t.Errorf("%s: reported %q, want %q", tt.name, got, tt.reported)
		}
	}
	off := opt
	off.OpenStack.Ignore = true
	service := serviceObject("s", asking(openstack.Hostname, "a.example", openstack.NodeSelector, "rack",
		openstack.ConnectionLimit, "5", openstack.ID, "u", openstack.Prefix+"class", "c"))
	s, problems := Compile(Objects{Services: []*corev1.Service{service}}, off)
	diff := cmp.Diff(lb.Wish{}, s.Services[0].Wish)
	if diff != "" || problems != nil || s.Services[0].ConnectionLimit > 0 {
		t.Errorf("ignored, and yet %s, %v", diff, problemTexts(problems))
	}
}

// communityObject has names, each followed by its value.
func communityObject(name string, second int64, namesAndValues ...string) *v1beta1.Community {
	o := &v1beta1.Community{ObjectMeta: meta(name, second)}
	for i := 0; i < len(namesAndValues); i += 2 {
		o.Spec.Communities = append(o.Spec.Communities,
			v1beta1.CommunityAlias{Name: namesAndValues[i], Value: namesAndValues[i+1]})
	}
	return o
}

// A name has one meaning: the well-known community, else the oldest object's.
func TestAliases(t *testing.T) {
	_, problems := Compile(Objects{Communities: []*v1beta1.Community{
		communityObject("old", 1, "backup", "64512:80", "wide", "64512:65536"),
		communityObject("young", 2, "backup", "64512:81", "no-export", "64512:1", "wide", "large:64512:0:65536"),
		communityObject("twin", 3, "backup", "64512:80", "wide", "large:64512:0:65536"),
	}}, Options{})
	want := []string{
		`Community old InvalidCommunity: spec.communities[1] is not known: "64512:65536" is not a community`,
		`Community young DuplicateAlias: spec.communities[0] is not used: in Community "old", which is older, backup is 64512:80`,
		`Community young DuplicateAlias: spec.communities[1] is not used: no-export is a well-known community, 65535:65281`,
	}
	same(t, "problems", want, problemTexts(problems))
}

// Intervals are milliseconds, as MetalLB has them. Once a peer took such a number for microseconds: 300 became 0.3 ms.
// A peer whose profile does not exist runs without BFD; all other peers run as they should.
func TestBFDProfile(t *testing.T) {
	peer := func(name, address, profile string) *v1beta1.BGPPeer {
		return peerObject(name, 1, func(s *v1beta1.BGPPeerSpec) { s.PeerAddress, s.BFDProfile = address, profile })
	}
	objects := Objects{
		BFDProfiles: []*v1beta1.BFDProfile{
			{ObjectMeta: metav1.ObjectMeta{Name: "plain"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: v1beta1.BFDProfileSpec{
				ReceiveInterval: new(int32(50)), TransmitInterval: new(int32(60)), DetectMultiplier: new(int32(5)),
				PassiveMode: true,
				MinimumTTL:  new(int32(100)), EchoInterval: new(int32(50)),
			}},
		},
		Peers: []*v1beta1.BGPPeer{
			peer("a", "192.0.2.1", "plain"), peer("b", "2001:db8::1", "all"), peer("c", "192.0.2.3", ""),
			peer("d", "192.0.2.4", "missing"),
		},
	}
	state, problems := Compile(objects, Options{})
	const missing = `BGPPeer d UnknownReference: spec.bfdProfile names BFDProfile "missing", which does not exist: the session runs without BFD`
	same(t, "problems", []string{missing}, problemTexts(problems))
	got := map[string]*lb.BFD{}
	for _, p := range state.Peers {
		got[p.Name] = p.BFD
	}
	want := map[string]*lb.BFD{
		"a": {Transmit: 300 * time.Millisecond, Receive: 300 * time.Millisecond, Multiplier: 3, MinimumTTL: 254},
		"b": {Transmit: 60 * time.Millisecond, Receive: 50 * time.Millisecond, Multiplier: 5, Passive: true, MinimumTTL: 100},
		"c": nil, "d": nil,
	}
	same(t, "result", want, got)
}

func secretObject(namespace, name string, kind corev1.SecretType, password string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: kind,
		Data: map[string][]byte{"username": []byte("anyone"), "password": []byte(password)},
	}
}

// A peer without its password is not used, and no message shows a password.
func TestPasswordSecret(t *testing.T) {
	const own, password = "holdfast-system", "Geheim-7"
	const missing = `namespace "holdfast-system" has no Secret "s" of type kubernetes.io/basic-auth`
	ref := v1beta1.SecretReference{Name: "s"}
	for _, tt := range []struct {
		name   string
		ref    v1beta1.SecretReference
		secret *corev1.Secret
		want   string
	}{
		{"ours", ref, secretObject(own, "s", corev1.SecretTypeBasicAuth, password), ""},
		{
			"ours by name",
			v1beta1.SecretReference{Name: "s", Namespace: own},
			secretObject(own, "s", corev1.SecretTypeBasicAuth, password), "",
		},
		{"with spaces", ref, secretObject(own, "s", corev1.SecretTypeBasicAuth, "Geheim 7"), ""},
		{"with a space at its end", ref, secretObject(own, "s", corev1.SecretTypeBasicAuth, password+" "),
			`entry "password" of Secret "s" must have printable ASCII characters only, and no space at its ends; a line break at its end is a frequent mistake`},
		{
			"no such",
			v1beta1.SecretReference{Name: "s", Namespace: own},
			secretObject(own, "t", corev1.SecretTypeBasicAuth, password), missing,
		},
		{"another type", ref, secretObject(own, "s", corev1.SecretTypeOpaque, password), missing},
		{"of a tenant", ref, secretObject("tenant", "s", corev1.SecretTypeBasicAuth, password), missing},
		{
			"asked of a tenant",
			v1beta1.SecretReference{Name: "s", Namespace: "tenant"},
			secretObject("tenant", "s", corev1.SecretTypeBasicAuth, password),
			`passwordSecret is in namespace "tenant", and only Holdfast's own, "holdfast-system", is read`,
		},
		{
			"empty",
			ref, secretObject(own, "s", corev1.SecretTypeBasicAuth, ""),
			`entry "password" of Secret "s" must have 1 to 80 characters, and has 0`,
		},
		{"with a line break", ref, secretObject(own, "s", corev1.SecretTypeBasicAuth, password+"\n"),
			`entry "password" of Secret "s" must have printable ASCII characters only, and no space at its ends; a line break at its end is a frequent mistake`},
	} {
		s, problems := Compile(Objects{SecretNamespace: own, Secrets: []*corev1.Secret{tt.secret}, Peers: []*v1beta1.BGPPeer{
			peerObject("p", 1, func(s *v1beta1.BGPPeerSpec) { s.PasswordSecret = &tt.ref }),
			peerObject("other", 2, func(s *v1beta1.BGPPeerSpec) { s.PeerAddress = "172.31.0.2" }),
		}}, Options{})
		var want []string
		used := map[string]lb.Secret{"other": "", "p": lb.Secret(tt.secret.Data[corev1.BasicAuthPasswordKey])}
		if tt.want != "" {
			want = []string{"BGPPeer p PasswordMissing: not used: " + tt.want}
			delete(used, "p")
		}
		got := map[string]lb.Secret{}
		for _, p := range s.Peers {
			got[p.Name] = p.Password
		}
		texts := problemTexts(problems)
		same(t, tt.name+": passwords", used, got)
		same(t, tt.name+": problems", want, texts)
		if strings.Contains(strings.Join(texts, "\n"), password) {
			t.Errorf("%s: a message shows the password: %v", tt.name, texts)
		}
	}
}

func loadBalancerIP(ip string) func(*corev1.Service) {
	return func(o *corev1.Service) { o.Spec.LoadBalancerIP = ip }
}

func TestRequest(t *testing.T) {
	v4only := func(o *corev1.Service) { o.Spec.ClusterIPs = []string{"10.96.0.1"} }
	headless := func(o *corev1.Service) { o.Spec.ClusterIPs = []string{"None"} }
	for _, tt := range []struct {
		name    string
		service *corev1.Service
		want    string
		// waits reports whether the Service is not served; otherwise the Problem is only reported.
		waits   bool
		problem []string
	}{
		{"nothing", serviceObject("s"), `[] ""`, false, nil},
		{"spec", serviceObject("s", loadBalancerIP("192.0.2.1")), `[192.0.2.1] ""`, false, nil},
		{
			"ours",
			serviceObject("s", annotated(AnnotationAddresses, " 192.0.2.1 , 2001:db8::1")),
			`[192.0.2.1 2001:db8::1] ""`, false, nil,
		},
		{
			"MetalLB's",
			serviceObject("s", annotated(MetalLBAddresses, "2001:db8::1"), annotated(MetalLBPool, "p")),
			`[2001:db8::1] "p"`, false, nil,
		},
		{
			"MetalLB's old",
			serviceObject("s", annotated(MetalLBAddressesOld, "192.0.2.1,2001:db8::1"), annotated(MetalLBPoolOld, "p")),
			`[192.0.2.1 2001:db8::1] "p"`, false, nil,
		},
		{
			"all agree",
			serviceObject("s", annotated(AnnotationPool, "p"), annotated(MetalLBPool, "p"), annotated(MetalLBPoolOld, " p")),
			`[] "p"`, false, nil,
		},
		{
			"spec is among the annotation's",
			serviceObject("s", loadBalancerIP("2001:DB8::1"), annotated(AnnotationAddresses, "192.0.2.1,2001:db8::1")),
			`[192.0.2.1 2001:db8::1] ""`, false, nil,
		},
		{
			"ours wins over MetalLB's",
			serviceObject("s", annotated(AnnotationPool, "p"), annotated(MetalLBPool, "q")), `[] "p"`, false,
			[]string{
				`Service default/s InvalidRequest: annotation holdfast.dev/pool ("p") overrides metallb.io/address-pool ("q")`,
			},
		},
		{
			"headless has no family to disagree with",
			serviceObject("s", headless, loadBalancerIP("2001:db8::1")), `[2001:db8::1] ""`, false, nil,
		},

		{
			"spec and annotation disagree",
			serviceObject("s", loadBalancerIP("192.0.2.2"), annotated(AnnotationAddresses, "192.0.2.1")), `[] ""`, true,
			[]string{
				"Service default/s InvalidRequest: spec.loadBalancerIP asks for 192.0.2.2 and annotation " +
					"holdfast.dev/addresses for 192.0.2.1",
			},
		},
		{"garbage", serviceObject("s", annotated(MetalLBAddresses, "192.0.2.1,,")), `[] ""`, true,
			[]string{
				`Service default/s InvalidRequest: annotation metallb.io/loadBalancerIPs: "" is not an IPv4 or IPv6 address`,
			}},
		{"garbage in spec", serviceObject("s", loadBalancerIP("192.0.2.256")), `[] ""`, true,
			[]string{`Service default/s InvalidRequest: spec.loadBalancerIP: "192.0.2.256" is not an IPv4 or IPv6 address`}},
		{"two of one family", serviceObject("s", annotated(AnnotationAddresses, "192.0.2.1,192.0.2.2")), `[] ""`, true,
			[]string{"Service default/s InvalidRequest: annotation holdfast.dev/addresses: 192.0.2.1 and 192.0.2.2 " +
				"are both IPv4: a Service has one address of each family"}},
		{"of a family it has not", serviceObject("s", v4only, annotated(AnnotationAddresses, "2001:db8::1")), `[] ""`, true,
			[]string{"Service default/s InvalidRequest: asks for 2001:db8::1, but has no IPv6 cluster IP (spec.ipFamilies)"}},
		{"with a zone", serviceObject("s", annotated(AnnotationAddresses, "fe80::1%eth0")), `[] ""`, true,
			[]string{
				`Service default/s InvalidRequest: annotation holdfast.dev/addresses: "fe80::1%eth0" has a zone: write fe80::1`,
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, problems := Compile(Objects{Services: []*corev1.Service{tt.service, serviceObject("other")}}, served())
			if len(s.Services) != 2 {
				t.Fatalf("%d Services", len(s.Services))
			}
			svc := s.Services[1]
			same(t, "result", tt.want, fmt.Sprintf("%v %q", svc.RequestedAddresses, svc.RequestedPool))
			same(t, "problems", tt.problem, problemTexts(problems))
			if (svc.Problem != nil) != tt.waits || tt.waits && *svc.Problem != problems[0] {
				t.Errorf("the Service's problem: %v", svc.Problem)
			}
		})
	}
}

// Any content of a Service is harmless: the result is a request for at most one
// address of each of its families, or a Problem, and others are still served.
func FuzzServiceRequest(f *testing.F) {
	f.Add("192.0.2.1,2001:db8::1", "", "192.0.2.1", "10.96.0.1", "192.0.2.1")
	f.Add("", "192.0.2.1", "192.0.2.2", "fd00:96::1", "host.example")
	f.Add(",,", "fe80::1%eth0", "::ffff:1.2.3.4", "None", "")
	f.Add("\x00", "1.2.3.4/5", " ", "", "::")
	f.Fuzz(func(t *testing.T, ours, metallb, spec, clusterIP, status string) {
		s, problems := Compile(Objects{Services: []*corev1.Service{
			serviceObject("fuzzed", annotated(AnnotationAddresses, ours), annotated(MetalLBAddresses, metallb),
				annotated(AnnotationPool, metallb),
				annotated(MetalLBPool, ours), loadBalancerIP(spec), having(status, ours),
				func(o *corev1.Service) { o.Spec.ClusterIPs = []string{clusterIP, "10.96.0.9"} }),
			serviceObject("good", annotated(AnnotationAddresses, "192.0.2.1")),
		}}, served())
		fuzzed, good := s.Services[0], s.Services[1]
		if len(good.RequestedAddresses) != 1 || good.Problem != nil {
			t.Fatalf("the good one suffers: %v", good)
		}
		if fuzzed.Problem != nil && (len(fuzzed.RequestedAddresses) > 0 || fuzzed.RequestedPool != "" || len(problems) == 0) {
			t.Fatalf("half read: %v", fuzzed)
		}
		seen := map[lb.Family]bool{}
		for _, a := range fuzzed.RequestedAddresses {
			if !a.IsValid() || a.Is4In6() || a.Zone() != "" || seen[lb.FamilyOf(a)] {
				t.Fatalf("asks for %v", fuzzed.RequestedAddresses)
			}
			seen[lb.FamilyOf(a)] = true
		}
		for _, p := range problems {
			if p.Object != (lb.Object{Kind: KindService, Namespace: "default", Name: "fuzzed"}) || p.Message == "" {
				t.Fatalf("problem of no object: %v", p)
			}
		}
	})
}
