package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
)

// communityObject has names, each followed by its value.
func communityObject(name string, second int64, namesAndValues ...string) *v1beta1.Community {
	o := &v1beta1.Community{ObjectMeta: meta(name, second)}
	for i := 0; i < len(namesAndValues); i += 2 {
		o.Spec.Communities = append(o.Spec.Communities, v1beta1.CommunityAlias{Name: namesAndValues[i], Value: namesAndValues[i+1]})
	}
	return o
}

// A name has one meaning: the standard's, else the oldest object's.
func TestAliases(t *testing.T) {
	_, problems := Compile(Objects{Communities: []*v1beta1.Community{
		communityObject("old", 1, "backup", "64512:80", "wide", "64512:65536"),
		communityObject("young", 2, "backup", "64512:81", "no-export", "64512:1", "wide", "large:64512:0:65536"),
		communityObject("twin", 3, "backup", "64512:80", "wide", "large:64512:0:65536"),
	}}, Options{})
	want := []string{
		`Community old InvalidCommunity: spec.communities[1] is not known: "64512:65536" is not a community: write two numbers up to 65535 (65000:100), or large: and three up to 4294967295 (large:64500:1:2)`,
		`Community young DuplicateAlias: spec.communities[0] is not used: in Community "old", which is older, backup is 64512:80`,
		`Community young DuplicateAlias: spec.communities[1] is not used: no-export is a well-known community, 65535:65281`,
	}
	if diff := cmp.Diff(want, problemTexts(problems)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// The later of two advertisements with different attributes for one route says so; what keeps them apart is no conflict.
func TestAdvertisementConflict(t *testing.T) {
	type spec = v1beta1.BGPAdvertisementSpec
	selector := func(key, value string) []metav1.LabelSelector {
		return []metav1.LabelSelector{labelled(map[string]string{key: value})}
	}
	const clash = `BGPAdvertisement a ConflictingAdvertisements: BGPAdvertisement "z" is older and gives the same routes other values, which are used there: `
	const mend = `; write the same, or let the two select other pools, Services, nodes or peers`
	for _, tt := range []struct {
		name       string
		old, young spec
		want       []string
	}{
		{"preference", spec{LocalPref: 100}, spec{}, []string{clash + "localPref 100, not 0" + mend}},
		{"MED and path", spec{MED: ptr(int64(0)), ASPathPrepend: 2}, spec{ASPathPrepend: 1}, []string{clash + "med 0, not none, asPathPrepend 2, not 1" + mend}},
		{"the same", spec{LocalPref: 100}, spec{LocalPref: 100}, nil},
		{"other peers", spec{LocalPref: 100, Peers: []string{"p"}}, spec{Peers: []string{"q"}}, nil},
		{"a common peer", spec{LocalPref: 100, Peers: []string{"p", "q"}}, spec{Peers: []string{"q"}}, []string{clash + "localPref 100, not 0" + mend}},
		{"other lengths", spec{LocalPref: 100, AggregationLength: ptr(int32(24)), AggregationLengthV6: ptr(int32(64))}, spec{}, nil},
		{"another length of one family", spec{LocalPref: 100, AggregationLength: ptr(int32(24))}, spec{}, []string{clash + "localPref 100, not 0" + mend}},
		{"other nodes", spec{LocalPref: 100, AdvertisementScope: v1beta1.AdvertisementScope{NodeSelectors: selector("zone", "a")}},
			spec{AdvertisementScope: v1beta1.AdvertisementScope{NodeSelectors: selector("zone", "b")}}, nil},
		{"other Services", spec{LocalPref: 100, AdvertisementScope: v1beta1.AdvertisementScope{ServiceSelectors: selector("team", "none")}}, spec{}, nil},
		{"a common Service", spec{LocalPref: 100, AdvertisementScope: v1beta1.AdvertisementScope{ServiceSelectors: selector("team", "red")}}, spec{},
			[]string{clash + "localPref 100, not 0" + mend}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			service := serviceObject("web", having("192.0.2.1"))
			service.Labels = map[string]string{"team": "red"}
			s, problems := Compile(Objects{
				Nodes:             []*corev1.Node{nodeObject("n1", "a"), nodeObject("n2", "b")},
				Pools:             []*v1beta1.IPAddressPool{poolObject("wide", 1, "192.0.2.0/24", "2001:db8::/64")},
				Peers:             []*v1beta1.BGPPeer{peerObject("p", 1), peerObject("q", 2, func(s *v1beta1.BGPPeerSpec) { s.PeerAddress = "172.31.0.2" })},
				Services:          []*corev1.Service{service},
				BGPAdvertisements: []*v1beta1.BGPAdvertisement{{ObjectMeta: meta("a", 2), Spec: tt.young}, {ObjectMeta: meta("z", 1), Spec: tt.old}},
			}, served())
			if diff := cmp.Diff(tt.want, problemTexts(problems)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if len(s.BGPAdvertisements) != 2 || s.BGPAdvertisements[0].Name != "z" {
				t.Errorf("in force, oldest first: %+v", s.BGPAdvertisements)
			}
		})
	}
}
