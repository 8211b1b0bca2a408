package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
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
		PreferredNodeSelectors: []v1beta1.PreferredNodeSelector{{Weight: 10, Preference: labelled(map[string]string{"zone": "a"})},
			{Weight: 100, Preference: badSelector()}},
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
	if diff := cmp.Diff(want, s.L2Advertisements); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	wantProblems := []string{
		`L2Advertisement a InvalidSelector: spec.ipAddressPoolSelectors[0] matches nothing: "Near" is not a valid label selector operator`,
		`L2Advertisement a InvalidSelector: spec.preferredNodeSelectors[1].preference matches nothing: "Near" is not a valid label selector operator`,
		`L2Advertisement a UnknownReference: spec.ipAddressPools names IPAddressPool "typo", which does not exist: create it or take the name out`,
	}
	if diff := cmp.Diff(wantProblems, problemTexts(problems)); diff != "" {
		t.Errorf("problems: -want +got\n%s", diff)
	}
}

func TestBGPAdvertisement(t *testing.T) {
	pools := []*v1beta1.IPAddressPool{
		poolObject("wide", 1, "192.0.2.0/24", "2001:db8::/64"),
		poolObject("narrow", 2, "198.51.100.0/28", "203.0.113.0/24"),
		poolObject("span", 3, "203.0.114.1-203.0.114.255"),
		poolObject("cut", 4, "192.0.2.0/23"),
	}
	length := func(n int32) *int32 { return &n }
	spec := func(changes ...func(*v1beta1.BGPAdvertisementSpec)) v1beta1.BGPAdvertisementSpec {
		var s v1beta1.BGPAdvertisementSpec
		for _, change := range changes {
			change(&s)
		}
		return s
	}
	cut := `BGPAdvertisement a InvalidAggregation: not used for IPAddressPool "narrow": routes of length 24 would reach beyond its ` +
		`198.51.100.0-198.51.100.15: aggregate to 28 or longer`
	span := `BGPAdvertisement a InvalidAggregation: not used for IPAddressPool "span": routes of length 24 would reach beyond its ` +
		`203.0.114.1-203.0.114.255: aggregate to 25 or longer`
	full := lb.BGPAdvertisement{Name: "a", AggregationLength: 32, AggregationLengthV6: 128}
	for _, tt := range []struct {
		name     string
		spec     v1beta1.BGPAdvertisementSpec
		want     func(*lb.BGPAdvertisement)
		problems []string
	}{
		{"defaults", spec(), func(*lb.BGPAdvertisement) {}, nil},
		{"unknown names stay", spec(func(s *v1beta1.BGPAdvertisementSpec) { s.IPAddressPools, s.Peers = []string{"x"}, []string{"y"} }),
			func(a *lb.BGPAdvertisement) { a.Pools, a.Peers = []string{"x"}, []string{"y"} },
			[]string{
				`BGPAdvertisement a UnknownReference: spec.ipAddressPools names IPAddressPool "x", which does not exist: create it or take the name out`,
				`BGPAdvertisement a UnknownReference: spec.peers names BGPPeer "y", which does not exist: create it or take the name out`,
			}},
		{"aggregate that fits", spec(func(s *v1beta1.BGPAdvertisementSpec) {
			s.IPAddressPools, s.AggregationLength, s.AggregationLengthV6 = []string{"wide", "cut"}, length(24), length(64)
		}), func(a *lb.BGPAdvertisement) {
			a.Pools, a.AggregationLength, a.AggregationLengthV6 = []string{"wide", "cut"}, 24, 64
		}, nil},
		{"of all pools, those that it fits", spec(func(s *v1beta1.BGPAdvertisementSpec) { s.AggregationLength = length(24) }),
			func(a *lb.BGPAdvertisement) { a.Pools, a.AggregationLength = []string{"cut", "wide"}, 24 }, []string{cut, span}},
		{"none that it fits is not all", spec(func(s *v1beta1.BGPAdvertisementSpec) {
			s.IPAddressPools, s.AggregationLength = []string{"narrow"}, length(24)
		}), nil, []string{cut}},
		{"communities sorted, once", spec(func(s *v1beta1.BGPAdvertisementSpec) {
			s.Communities = []string{"large:1:2:3", "65000:200", "junk", "65000:100", "065000:100"}
		}), func(a *lb.BGPAdvertisement) {
			a.Communities = []lb.Community{{A: 65000, B: 100}, {A: 65000, B: 200}, {Large: true, A: 1, B: 2, C: 3}}
		}, []string{
			`BGPAdvertisement a InvalidCommunity: spec.communities[2] is not sent: no Community has the name "junk"; the well-known ones are blackhole, ` +
				`graceful-shutdown, no-advertise, no-export, no-export-subconfed, no-peer`,
			`note BGPAdvertisement a InvalidCommunity: spec.communities[4] repeats 65000:100: once is enough`,
		}},
		{"communities by name", spec(func(s *v1beta1.BGPAdvertisementSpec) { s.Communities = []string{"no-export", "backup", "no-export"} }),
			func(a *lb.BGPAdvertisement) { a.Communities = []lb.Community{{A: 64512, B: 80}, {A: 65535, B: 65281}} },
			[]string{"note BGPAdvertisement a InvalidCommunity: spec.communities[2] repeats 65535:65281: once is enough"}},
		{"path and MED", spec(func(s *v1beta1.BGPAdvertisementSpec) { s.ASPathPrepend, s.MED = 32, ptr(int64(0)) }),
			func(a *lb.BGPAdvertisement) { a.Prepend, a.MED = 32, lb.MED{Sent: true} }, nil},
		{"local preference", spec(func(s *v1beta1.BGPAdvertisementSpec) { s.LocalPref = 1<<32 - 1 }),
			func(a *lb.BGPAdvertisement) { a.LocalPref = 1<<32 - 1 }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			older := full
			older.Name = "z"
			want := []lb.BGPAdvertisement{older}
			if tt.want != nil {
				a := full
				tt.want(&a)
				want = append(want, a)
			}
			s, problems := Compile(Objects{
				Pools:             pools,
				Communities:       []*v1beta1.Community{communityObject("names", 1, "backup", "64512:80")},
				BGPAdvertisements: []*v1beta1.BGPAdvertisement{{ObjectMeta: meta("a", 1), Spec: tt.spec}, {ObjectMeta: meta("z", 0)}},
			}, Options{})
			if diff := cmp.Diff(want, s.BGPAdvertisements); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			// Pool "cut" overlaps "wide" on purpose: as written it contains the whole /23.
			overlap := `IPAddressPool cut OverlappingAddresses: IPAddressPool "wide" is older and keeps 192.0.2.0-192.0.2.255: take that out of one of the two pools`
			if diff := cmp.Diff(append(tt.problems, overlap), problemTexts(problems)); diff != "" {
				t.Errorf("problems: -want +got\n%s", diff)
			}
		})
	}
}

// The API server refuses what no route can have.
func TestAdvertisementSchema(t *testing.T) {
	for spec, want := range map[string]string{
		"localPref: 4294967295, med: 0, asPathPrepend: 32, aggregationLength: 1, aggregationLengthV6: 1": "",
		"localPref: 4294967296":    "less than or equal to 4294967295",
		"med: -1":                  "greater than or equal to 0",
		"asPathPrepend: 33":        "less than or equal to 32",
		"aggregationLength: 33":    "less than or equal to 32",
		"aggregationLengthV6: 129": "less than or equal to 128",
		"serviceSelectors: [{}], aggregationLength: 24, aggregationLengthV6: 128": "cannot be aggregated",
	} {
		checkSchema(t, KindBGPAdvertisement, spec, want)
	}
}
