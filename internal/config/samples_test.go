package config

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const samples = "../../config/samples"

// Every sample parses as strictly as in the API server, without unknown fields, and
// all samples together are a configuration without a Problem.
func TestSamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(samples, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var o Objects
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
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
	if diff := cmp.Diff(want, rangesOf(state)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if len(state.L2Advertisements) != 1 || len(state.BGPAdvertisements) != 1 || len(state.Peers) != 5 || len(state.Services) != 3 {
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
