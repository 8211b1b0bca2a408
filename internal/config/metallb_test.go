package config

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/apitest"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"sigs.k8s.io/yaml"
)

// TestMetalLBSamples: with another apiVersion the API server admits every object of MetalLB's samples and documentation, without
// an unknown field, and all of it is in force, but for a VRF.
func TestMetalLBSamples(t *testing.T) {
	crds, err := apitest.Read("1.31")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]apitest.CRD{}
	for _, c := range crds {
		kinds[c.Kind] = c
	}
	text, err := os.ReadFile("testdata/metallb-v0.16.2.yaml")
	if err != nil {
		t.Fatal(err)
	}
	documents, vrf := bytes.Split(text, []byte("\n---\n"))[1:], 0
	if len(documents) < 60 {
		t.Fatalf("%d objects", len(documents))
	}
	for _, document := range documents {
		for _, version := range []string{"v1beta1", "v1beta2"} {
			document = bytes.Replace(document, []byte("metallb.io/"+version), []byte(v1beta1.GroupVersion.String()), 1)
		}
		body, err := yaml.YAMLToJSONStrict(document)
		if err != nil {
			t.Fatal(err)
		}
		var head struct{ Kind string }
		if err := yaml.Unmarshal(document, &head); err != nil {
			t.Fatal(err)
		}
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
		switch head.Kind {
		case KindPool:
			o.Pools = strict(t, o.Pools, document)
		case KindL2Advertisement:
			o.L2Advertisements = strict(t, o.L2Advertisements, document)
		case KindBGPAdvertisement:
			o.BGPAdvertisements = strict(t, o.BGPAdvertisements, document)
		case KindPeer:
			o.Peers = strict(t, o.Peers, document)
			if ref := o.Peers[0].Spec.PasswordSecret; ref != nil && ref.Name != "" {
				o.SecretNamespace, o.Secrets = "own", append(o.Secrets, secretObject("own", ref.Name, "kubernetes.io/basic-auth", "x"))
			}
		case KindBFDProfile:
			o.BFDProfiles = strict(t, o.BFDProfiles, document)
		case KindCommunity:
			o.Communities = strict(t, o.Communities, document)
		default:
			t.Fatalf("%s", document)
		}
		s, problems := Compile(o, Options{})
		if len(s.Peers) != len(o.Peers) || len(s.Pools) != len(o.Pools) || len(s.L2Advertisements) != len(o.L2Advertisements) ||
			len(s.BGPAdvertisements) != len(o.BGPAdvertisements) {
			t.Errorf("not in force\n%s", document)
		}
		for _, p := range problems {
			elsewhere := p.Reason == lb.UnknownReference || strings.Contains(p.Message, "no Community has the name") // in another object
			if !elsewhere && p.Reason != lb.HostBitsIgnored {
				t.Errorf("%v\n%s", p, document)
			}
		}
	}
	if vrf != 2 {
		t.Errorf("%d objects with a VRF", vrf)
	}
}

// strict appends an object without unknown fields.
func strict[T any](t *testing.T, to []*T, document []byte) []*T {
	t.Helper()
	o := new(T)
	if err := yaml.UnmarshalStrict(document, o); err != nil {
		t.Errorf("%v\n%s", err, document)
	}
	return append(to, o)
}
