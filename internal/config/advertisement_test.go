package config

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/apitest"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

func TestL2Advertisement(t *testing.T) {
	o := &v1beta1.L2Advertisement{ObjectMeta: meta("a", 1), Spec: v1beta1.L2AdvertisementSpec{
		AdvertisementScope: v1beta1.AdvertisementScope{
			IPAddressPools:         []string{"lan", "typo"},
			IPAddressPoolSelectors: []metav1.LabelSelector{badSelector()},
			NodeSelectors:          []metav1.LabelSelector{labelled(map[string]string{"zone": "a"})},
			ServiceSelectors:       []metav1.LabelSelector{{}},
		},
		Interfaces: []string{"eth1", "eth0"},
		PreferredNodeSelectors: []v1beta1.PreferredNodeSelector{
			{Weight: 10, Preference: labelled(map[string]string{"zone": "a"})},
			{Weight: 100, Preference: badSelector()},
		},
	}}
	s, problems := Compile(Objects{
		Pools:            []*v1beta1.IPAddressPool{poolObject("lan", 1, "192.0.2.1")},
		L2Advertisements: []*v1beta1.L2Advertisement{{ObjectMeta: meta("b", 0)}, o},
	}, Options{})
	want := []lb.L2Advertisement{{
		Name: "a",
		Scope: lb.Scope{
			Pools:            []string{"lan", "typo"},
			PoolSelectors:    []lb.Selector{{{Operator: lb.In}}},
			NodeSelectors:    []lb.Selector{{{Key: "zone", Operator: lb.In, Values: []string{"a"}}}},
			ServiceSelectors: []lb.Selector{{}},
		},
		Links: []string{"eth1", "eth0"},
		Preferred: []lb.Preference{{Weight: 10, Selector: lb.Selector{{Key: "zone", Operator: lb.In, Values: []string{"a"}}}},
			{Weight: 100, Selector: lb.Selector{{Operator: lb.In}}}},
	}, {Name: "b"}}
	same(t, "L2Advertisements", want, s.L2Advertisements)
	wantProblems := []string{
		`L2Advertisement a InvalidSelector: spec.ipAddressPoolSelectors[0] matches nothing: "Near" is not a valid label selector operator`,
		`L2Advertisement a InvalidSelector: spec.preferredNodeSelectors[1].preference matches nothing: "Near" is not a valid label selector operator`,
		`L2Advertisement a UnknownReference: spec.ipAddressPools names IPAddressPool "typo", which does not exist`,
	}
	same(t, "problems", wantProblems, problemTexts(problems))
}

func TestBGPAdvertisement(t *testing.T) {
	pools := []*v1beta1.IPAddressPool{
		poolObject("wide", 1, "192.0.2.0/24", "2001:db8::/64"),
		poolObject("narrow", 2, "198.51.100.0/28", "203.0.113.0/24"),
		poolObject("span", 3, "203.0.114.1-203.0.114.255"),
		poolObject("cut", 4, "192.0.2.0/23"),
	}
	type spec = v1beta1.BGPAdvertisementSpec
	of := func(pools ...string) v1beta1.AdvertisementScope {
		return v1beta1.AdvertisementScope{IPAddressPools: pools}
	}
	route24, route64 := new(int32(24)), new(int32(64))
	cut := `BGPAdvertisement a InvalidAggregation: not used for IPAddressPool "narrow": routes of length 24 would reach beyond its ` +
		`198.51.100.0-198.51.100.15, which allows 28 or longer`
	span := `BGPAdvertisement a InvalidAggregation: not used for IPAddressPool "span": routes of length 24 would reach beyond its ` +
		`203.0.114.1-203.0.114.255, which allows 25 or longer`
	full := lb.BGPAdvertisement{Name: "a", AggregationLength: 32, AggregationLengthV6: 128}
	for _, tt := range []struct {
		name     string
		spec     spec
		want     func(*lb.BGPAdvertisement)
		problems []string
	}{
		{"defaults", spec{}, func(*lb.BGPAdvertisement) {}, nil},
		{"unknown names stay", spec{AdvertisementScope: of("x"), Peers: []string{"y"}},
			func(a *lb.BGPAdvertisement) { a.Pools, a.Peers = []string{"x"}, []string{"y"} },
			[]string{
				`BGPAdvertisement a UnknownReference: spec.ipAddressPools names IPAddressPool "x", which does not exist`,
				`BGPAdvertisement a UnknownReference: spec.peers names BGPPeer "y", which does not exist`,
			}},
		{
			"aggregate that fits",
			spec{AdvertisementScope: of("wide", "cut"), AggregationLength: route24, AggregationLengthV6: route64},
			func(a *lb.BGPAdvertisement) {
				a.Pools, a.AggregationLength, a.AggregationLengthV6 = []string{"wide", "cut"}, 24, 64
			}, nil,
		},
		{"of all pools, those that it fits", spec{AggregationLength: route24},
			func(a *lb.BGPAdvertisement) { a.Pools, a.AggregationLength = []string{"cut", "wide"}, 24 }, []string{cut, span}},
		{
			"none that it fits is not all",
			spec{AdvertisementScope: of("narrow"), AggregationLength: route24}, nil, []string{cut},
		},
		{
			"communities sorted, once",
			spec{Communities: []string{"large:1:2:3", "65000:200", "junk", "65000:100", "065000:100"}},
			func(a *lb.BGPAdvertisement) {
				a.Communities = []lb.Community{{A: 65000, B: 100}, {A: 65000, B: 200}, {Large: true, A: 1, B: 2, C: 3}}
			}, []string{
				`BGPAdvertisement a InvalidCommunity: spec.communities[2] is not sent: no Community has the name "junk"; the well-known ones are blackhole, ` +
					`graceful-shutdown, no-advertise, no-export, no-export-subconfed, no-peer`,
				`note BGPAdvertisement a InvalidCommunity: spec.communities[4] repeats 65000:100: once is enough`,
			},
		},
		{"communities by name", spec{Communities: []string{"no-export", "backup", "no-export"}},
			func(a *lb.BGPAdvertisement) { a.Communities = []lb.Community{{A: 64512, B: 80}, {A: 65535, B: 65281}} },
			[]string{"note BGPAdvertisement a InvalidCommunity: spec.communities[2] repeats 65535:65281: once is enough"}},
		{"path and MED", spec{ASPathPrepend: 32, MED: new(int64(0))},
			func(a *lb.BGPAdvertisement) { a.Prepend, a.MED = 32, lb.MED{Sent: true} }, nil},
		{"local preference", spec{LocalPref: 1<<32 - 1}, func(a *lb.BGPAdvertisement) { a.LocalPref = 1<<32 - 1 }, nil},
	} {
		older := full
		older.Name = "z"
		want := []lb.BGPAdvertisement{older}
		if tt.want != nil {
			a := full
			tt.want(&a)
			want = append(want, a)
		}
		s, problems := Compile(Objects{
			Pools:       pools,
			Communities: []*v1beta1.Community{communityObject("names", 1, "backup", "64512:80")},
			BGPAdvertisements: []*v1beta1.BGPAdvertisement{
				{ObjectMeta: meta("a", 1), Spec: tt.spec},
				{ObjectMeta: meta("z", 0)},
			},
		}, Options{})
		same(t, tt.name+": BGPAdvertisements", want, s.BGPAdvertisements)
		// Pool "cut" overlaps "wide" on purpose: as written it contains the whole /23.
		overlap := `IPAddressPool cut OverlappingAddresses: IPAddressPool "wide" is older and keeps 192.0.2.0-192.0.2.255`
		same(t, tt.name+": problems", append(tt.problems, overlap), problemTexts(problems))
	}
}

// The API server refuses attributes that no route can have.
func TestAdvertisementSchema(t *testing.T) {
	for spec, want := range map[string]string{
		"localPref: 4294967295, med: 0, asPathPrepend: 32, aggregationLength: 1, aggregationLengthV6: 1": "",
		"localPref: 4294967296":    "less than or equal to 4294967295",
		"med: -1":                  "greater than or equal to 0",
		"asPathPrepend: 33":        "less than or equal to 32",
		"aggregationLength: 33":    "less than or equal to 32",
		"aggregationLengthV6: 129": "less than or equal to 128",
		"communities: ['65535:65535', 'large:4294967295:0:4294967295', no-export, '00001:00002']": "",
		"communities: ['65536:1']":                                                "the numbers of a community go to 65535",
		"communities: ['1:65536']":                                                "the numbers of a community go to 65535",
		"communities: ['large:1:4294967296:1']":                                   "the numbers of a community go to 65535",
		"serviceSelectors: [{}], aggregationLength: 24, aggregationLengthV6: 128": "cannot be aggregated",
	} {
		checkSchema(t, KindBGPAdvertisement, spec, want)
	}
}

// TestMetalLBSamples: with another apiVersion the API server admits every object of MetalLB's samples and
// documentation, without an unknown field, and all of them are in force, except for a VRF.
func TestMetalLBSamples(t *testing.T) {
	crds, err := apitest.Read()
	must(t, err)
	kinds := map[string]apitest.CRD{}
	for _, c := range crds {
		kinds[c.Kind] = c
	}
	text, err := os.ReadFile("testdata/metallb-v0.16.2.yaml")
	must(t, err)
	documents, vrf := bytes.Split(text, []byte("\n---\n"))[1:], 0
	if len(documents) < 60 {
		t.Fatalf("%d objects", len(documents))
	}
	for _, document := range documents {
		for _, version := range []string{"v1beta1", "v1beta2"} {
			document = bytes.Replace(document, []byte("metallb.io/"+version), []byte(v1beta1.GroupVersion.String()), 1)
		}
		body, err := yaml.YAMLToJSONStrict(document)
		must(t, err)
		var head struct{ Kind string }
		must(t, yaml.Unmarshal(document, &head))
		switch err := kinds[head.Kind].Check(body); {
		case strings.Contains(string(document), "vrf: "):
			vrf++
			if err == nil || !strings.Contains(err.Error(), "sessions within a VRF are not served: remove vrf") {
				t.Errorf("%v\n%s", err, document)
			}
			continue
		case err != nil:
			t.Errorf("%v\n%s", err, document)
			continue
		}
		var o Objects
		if err := o.add(document); err != nil {
			t.Errorf("%v\n%s", err, document)
		}
		for _, p := range o.Peers {
			if ref := p.Spec.PasswordSecret; ref != nil && ref.Name != "" {
				o.SecretNamespace = "own"
				o.Secrets = append(o.Secrets, secretObject("own", ref.Name, "kubernetes.io/basic-auth", "x"))
			}
		}
		s, problems := Compile(o, Options{})
		ignored := len(s.Peers) != len(o.Peers) || len(s.Pools) != len(o.Pools) ||
			len(s.L2Advertisements) != len(o.L2Advertisements) ||
			len(s.BGPAdvertisements) != len(o.BGPAdvertisements)
		if ignored {
			t.Errorf("not in force\n%s", document)
		}
		for _, p := range problems {
			// in another object
			elsewhere := p.Reason == lb.UnknownReference || strings.Contains(p.Message, "no Community has the name")
			if !elsewhere && p.Reason != lb.HostBitsIgnored {
				t.Errorf("%v\n%s", p, document)
			}
		}
	}
	if vrf != 2 {
		t.Errorf("%d objects with a VRF", vrf)
	}
}

// TestUnadvertised: a pool with held addresses is reported if no advertisement selects it, by name, by label or by
// selecting all.
func TestUnadvertised(t *testing.T) {
	p := poolObject("new", 1, "192.0.2.0/29")
	p.Labels = map[string]string{"net": "lan"}
	l2 := func(change func(*v1beta1.AdvertisementScope)) []*v1beta1.L2Advertisement {
		a := &v1beta1.L2Advertisement{ObjectMeta: meta("l2", 1)}
		change(&a.Spec.AdvertisementScope)
		return []*v1beta1.L2Advertisement{a}
	}
	bgp := &v1beta1.BGPAdvertisement{ObjectMeta: meta("bgp", 1)}
	former := func(s *v1beta1.AdvertisementScope) { s.IPAddressPools = []string{"old"} }
	byLabel := func(s *v1beta1.AdvertisementScope) {
		s.IPAddressPoolSelectors = []metav1.LabelSelector{labelled(p.Labels)}
	}
	for _, tt := range []struct {
		name   string
		o      Objects
		held   int64
		silent bool
	}{
		{"no advertisement", Objects{}, 2, false},
		{"one with the former name", Objects{L2Advertisements: l2(former)}, 2, false},
		{"nothing is held", Objects{}, 0, true},
		{"by its label", Objects{L2Advertisements: l2(byLabel)}, 2, true},
		{
			"by BGP, which selects all",
			Objects{L2Advertisements: l2(former), BGPAdvertisements: []*v1beta1.BGPAdvertisement{bgp}}, 2, true,
		},
	} {
		tt.o.Pools = []*v1beta1.IPAddressPool{p}
		s, _ := Compile(tt.o, Options{})
		var want []string
		if !tt.silent {
			want = []string{
				`note IPAddressPool new NoAdvertisement: addresses of the pool are held and not announced, since no L2Advertisement and ` +
					`no BGPAdvertisement selects it: add "new" to spec.ipAddressPools of one`,
			}
		}
		same(t, tt.name, want, problemTexts(Unadvertised(s, func(string) int64 { return tt.held })))
	}
}
