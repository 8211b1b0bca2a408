package config

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/holdfast-lb/holdfast/internal/crdtest"
)

// kind returns the schema and rules of one of our kinds.
func kind(t *testing.T, name string) crdtest.CRD {
	t.Helper()
	all, err := crdtest.Read("1.31")
	if err != nil {
		t.Fatal(err)
	}
	return all[slices.IndexFunc(all, func(c crdtest.CRD) bool { return c.Kind == name })]
}

// The API server refuses what contradicts itself, each with a sentence.
func TestPeerSchema(t *testing.T) {
	c := kind(t, KindPeer)
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
		{"myASN: 64600, peerASN: 64512, interface: eth0, sourceAddress: 172.31.0.1", "interface and sourceAddress exclude each other"},
		{"myASN: 64600, peerASN: 64512, interface: eth0, ebgpMultiHop: true", "interface and ebgpMultiHop exclude each other"},
		{"myASN: 64600, peerASN: 64512, interface: 'eth0 remote-as'", "should match"},
		{"myASN: 64600, peerASN: 64512, interface: abcdefghijklmnop", "may not be more than 15"},
		{"myASN: 64600, peerASN: 64512, interface: ''", "should match"},
		{plain + ", vrf: red", "sessions within a VRF are not served"},
		{plain + ", dynamicASN: external", "write either peerASN, or dynamicASN"},
		{"myASN: 64600, peerAddress: 172.31.0.9", "write either peerASN, or dynamicASN"},
		{"myASN: 64600, dynamicASN: any, peerAddress: 172.31.0.9", "Unsupported value"},
		{"myASN: 64600, dynamicASN: internal, peerAddress: 172.31.0.9, ebgpMultiHop: true", "ebgpMultiHop is for peers of another AS"},
		{"myASN: 64600, dynamicASN: internal, peerAddress: 172.31.0.9, localASN: 65010", "localASN is for peers of another AS"},
		{plain + ", localASN: 64512", "localASN is for peers of another AS"},
		{"myASN: 64600, peerASN: 64600, peerAddress: 172.31.0.9, localASN: 65010", "localASN is for peers of another AS"},
		{plain + ", ttlSecurity: 255", "less than or equal to 254"},
		{plain + ", ttlSecurity: 1, ebgpMultiHop: true", "ttlSecurity and ebgpMultiHop exclude each other"},
		{plain + ", password: x, passwordSecret: {name: z}", "write either password or passwordSecret"},
		{plain + ", password: 'a b'", "should match"},
		{plain + ", password: ''", "at least 1"},
		{plain + ", passwordSecret: {namespace: y}", "name: Required"},
	} {
		body, err := yaml.YAMLToJSON([]byte("{apiVersion: holdfast.dev/v1beta1, kind: BGPPeer, metadata: {name: x}, spec: {" + tt.spec + "}}"))
		if err != nil {
			t.Fatal(err)
		}
		switch err := c.Check(body); {
		case tt.want == "" && err != nil:
			t.Errorf("{%s} is refused: %v", tt.spec, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("{%s}: %v, want %q", tt.spec, err, tt.want)
		}
	}
}
