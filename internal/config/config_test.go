package config

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// world is a configuration with every kind of conflict.
func world() Objects {
	return Objects{
		Pools: []*v1beta1.IPAddressPool{
			poolObject("a", 1, "192.0.2.0/24", "192.0.2.7"), poolObject("b", 1, "192.0.2.128/24", "garbage"),
			poolObject("c", 0, "192.0.2.9-192.0.2.11", "2001:db8::/64"),
		},
		L2Advertisements: []*v1beta1.L2Advertisement{
			{
				ObjectMeta: meta("y", 1),
				Spec: v1beta1.L2AdvertisementSpec{
					AdvertisementScope: v1beta1.AdvertisementScope{IPAddressPools: []string{"x"}},
				},
			},
			{ObjectMeta: meta("x", 2), Spec: v1beta1.L2AdvertisementSpec{
				AdvertisementScope: v1beta1.AdvertisementScope{NodeSelectors: []metav1.LabelSelector{badSelector()}}}},
		},
		BGPAdvertisements: []*v1beta1.BGPAdvertisement{
			{ObjectMeta: meta("y", 1), Spec: v1beta1.BGPAdvertisementSpec{
				AggregationLength: new(int32(28)), Communities: []string{"1:2", "1:1", "x"},
			}},
			{ObjectMeta: meta("x", 1), Spec: v1beta1.BGPAdvertisementSpec{Peers: []string{"missing"}}},
		},
		Peers: []*v1beta1.BGPPeer{
			peerObject("p", 1), peerObject("q", 1),
			peerObject("r", 0, func(s *v1beta1.BGPPeerSpec) { s.PeerAddress = "172.30.0.11" }),
			peerObject("s", 0, func(s *v1beta1.BGPPeerSpec) { s.MyASN = 0 }),
		},
		Services: []*corev1.Service{
			serviceObject("a", annotated(AnnotationAddresses, "?")),
			serviceObject("b", annotated(AnnotationPool, "a"), annotated(MetalLBPool, "b")),
			serviceObject("c", leaving, having("192.0.2.1")), serviceObject("d", leaving, having("192.0.2.1")),
		},
		EndpointSlices: numbered(sliceObject("a", discoveryv1.Endpoint{NodeName: new("n1")}),
			sliceObject("a", discoveryv1.Endpoint{NodeName: new("n2")})),
		Nodes: []*corev1.Node{
			nodeObject("n1", "a", "172.30.0.11"), nodeObject("n2", "b", "172.30.0.12"), nodeObject("n3", "b"),
		},
		Namespaces: []*corev1.Namespace{
			{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": "red"}}},
			{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
		},
	}
}

// numbered gives objects names.
func numbered[T metav1.Object](objects ...T) []T {
	for i, o := range objects {
		o.SetName(fmt.Sprint(i))
	}
	return objects
}

func shuffled[T any](r *rand.Rand, s []T) []T {
	s = slices.Clone(s)
	r.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
	return s
}

func TestOrderOfInputDoesNotMatter(t *testing.T) {
	o := world()
	state, problems := Compile(o, served())
	if len(problems) < 10 {
		t.Errorf("only %d problems in a world full of them: %v", len(problems), problemTexts(problems))
	}
	same(t, "namespaces", map[string]map[string]string{"default": {"team": "red"}, "other": nil}, state.Namespaces)
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		again, permuted := Compile(Objects{
			shuffled(r, o.Pools), shuffled(r, o.PoolMemories), shuffled(r, o.EgressAllocations),
			shuffled(r, o.FloatingIPs), shuffled(r, o.L2Advertisements), shuffled(r, o.BGPAdvertisements),
			shuffled(r, o.Peers), shuffled(r, o.BFDProfiles), shuffled(r, o.Communities), shuffled(r, o.Services),
			shuffled(r, o.EndpointSlices), shuffled(r, o.Nodes), o.ServicesByKey, o.SlicesByKey, o.NodesByKey,
			shuffled(r, o.EgressPods), shuffled(r, o.Namespaces), shuffled(r, o.Secrets), o.SecretNamespace,
			shuffled(r, o.ServiceCIDRs), shuffled(r, o.NetworkAddresses),
		}, served())
		if diff := cmp.Diff(state, again, addrs()); diff != "" {
			t.Fatalf("seed %d: -first +shuffled\n%s", seed, diff)
		}
		if diff := cmp.Diff(problems, permuted); diff != "" {
			t.Fatalf("seed %d: problems: -first +shuffled\n%s", seed, diff)
		}
	}
}

// The API objects come from a shared cache and must not be changed.
func TestInputIsNotChanged(t *testing.T) {
	o := world()
	Compile(o, served())
	if diff := cmp.Diff(world(), o, addrs()); diff != "" {
		t.Errorf("-before +after\n%s", diff)
	}
}

const samples = "../../config/samples"

// Every sample parses as strictly as in the API server, without unknown fields, and
// all samples together are a configuration without a Problem.
func TestSamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(samples, "*.yaml"))
	must(t, err)
	var o Objects
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, document := range bytes.Split(text, []byte("\n---\n")) {
			if err := o.add(document); err != nil {
				t.Errorf("%s: %v\n%s", filepath.Base(file), err, document)
			}
		}
	}
	for _, s := range o.Services {
		// The API server allocates these.
		s.Namespace, s.Spec.ClusterIPs = "default", []string{"10.96.0.1", "fd00:96::1"}
	}
	state, problems := Compile(o, served())
	if problems != nil {
		t.Errorf("problems: %v", problemTexts(problems))
	}
	want := map[string]string{
		"lan":        "[172.30.0.128-172.30.0.191 fd00:30::1:0-fd00:30::1:ffff]",
		"routed":     "[198.18.0.0-198.18.0.255 fd00:198::-fd00:198::ffff]",
		"restricted": "[198.18.7.0-198.18.7.15 fd00:198:7::-fd00:198:7::f]",
	}
	same(t, "result", want, rangesOf(state))
	missing := len(state.L2Advertisements) != 1 || len(state.BGPAdvertisements) != 1 || len(state.Peers) != 5 ||
		len(state.Services) != 4
	if missing {
		t.Errorf("a kind is missing: %+v", state)
	}
}

// add parses one document strictly.
func (o *Objects) add(document []byte) error {
	var kind metav1.TypeMeta
	if err := yaml.Unmarshal(document, &kind); err != nil {
		return err
	}
	switch kind.APIVersion + " " + kind.Kind {
	case "holdfast.dev/v1beta1 " + KindPool:
		return addTo(&o.Pools, document)
	case "holdfast.dev/v1beta1 " + KindFloatingIP:
		return addTo(&o.FloatingIPs, document)
	case "holdfast.dev/v1beta1 " + KindL2Advertisement:
		return addTo(&o.L2Advertisements, document)
	case "holdfast.dev/v1beta1 " + KindBGPAdvertisement:
		return addTo(&o.BGPAdvertisements, document)
	case "holdfast.dev/v1beta1 " + KindPeer:
		return addTo(&o.Peers, document)
	case "holdfast.dev/v1beta1 " + KindBFDProfile:
		return addTo(&o.BFDProfiles, document)
	case "holdfast.dev/v1beta1 " + KindCommunity:
		return addTo(&o.Communities, document)
	case "v1 " + KindService:
		return addTo(&o.Services, document)
	}
	return fmt.Errorf("unknown kind %v", kind)
}

func addTo[T any](list *[]*T, document []byte) error {
	var v T
	*list = append(*list, &v)
	return yaml.UnmarshalStrict(document, &v)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same reports the difference between two values.
func same(t testing.TB, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s: -want +got\n%s", what, diff)
	}
}
