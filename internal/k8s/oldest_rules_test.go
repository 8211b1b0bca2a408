//go:build oldest

package k8s

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// breach is parts of an object of a kind that break a rule, with the beginning of the rule's message.
type breach struct{ kind, message, parts string }

// broken break the rules on spec. The rest of the object is an example.
var broken = []breach{
	{"BFDProfile", "echo mode is not supported", `{"spec":{"echoMode":true}}`},
	{"BGPAdvertisement", "serviceSelectors pick single addresses", `{"spec":{"serviceSelectors":[{}],"aggregationLength":24}}`},
	{"BGPPeer", "ebgpMultiHop is for peers of another AS", `{"spec":{"ebgpMultiHop":true,"myASN":64513}}`},
	{"BGPPeer", "write either peerASN, or dynamicASN", `{"spec":{"dynamicASN":"external"}}`},
	{"BGPPeer", "localASN is for peers of another AS", `{"spec":{"localASN":64513,"peerASN":64513}}`},
	{"BGPPeer", "ttlSecurity and ebgpMultiHop exclude each other", `{"spec":{"ttlSecurity":2,"ebgpMultiHop":true}}`},
	{"BGPPeer", "write either password or passwordSecret", `{"spec":{"password":"secret","passwordSecret":{"name":"router"}}}`},
	{"BGPPeer", "passwordSecret needs the name of the Secret", `{"spec":{"passwordSecret":{"namespace":"holdfast-system"}}}`},
	{"BGPPeer", "sessions within a VRF are not served", `{"spec":{"vrf":"red"}}`},
	{"BGPPeer", "sourceAddress and peerAddress must be of one", `{"spec":{"sourceAddress":"2001:db8::1"}}`},
	{"BGPPeer", "write either peerAddress, or interface", `{"spec":{"interface":"eth0"}}`},
	{"BGPPeer", "interface and sourceAddress exclude each other", `{"spec":{"interface":"eth0","peerAddress":null}}`},
	{"BGPPeer", "interface and ebgpMultiHop exclude each other", `{"spec":{"interface":"eth0","peerAddress":null,"sourceAddress":null,"ebgpMultiHop":true}}`},
	{"BGPPeer", "keepaliveTime must not be longer", `{"spec":{"keepaliveTime":"91s"}}`},
	{"BGPPeer", "peerAddress must be an IPv4 or IPv6", `{"spec":{"peerAddress":"192.0.2.256"}}`},
	{"BGPPeer", "sourceAddress must be an IPv4 or IPv6", `{"spec":{"sourceAddress":"router"}}`},
	{"BGPPeer", "holdTime must be between 3s", `{"spec":{"holdTime":"2s"}}`},
	{"BGPPeer", "keepaliveTime must be at least 1s", `{"spec":{"keepaliveTime":"999ms"}}`},
	{"BGPPeer", "connectTime must be between 1s", `{"spec":{"connectTime":"65536s"}}`},
	{"BGPPeer", "routerID must have the form", `{"spec":{"routerID":"2001:db8::1"}}`},
	{"FloatingIP", "each of addresses must be of one of ipFamilies", `{"spec":{"addresses":["2001:db8::1"],"ipFamilies":["IPv4"]}}`},
	{"FloatingIP", "each address must be an IPv4 or IPv6 address", `{"spec":{"addresses":["192.0.2.0/24"],"ipFamilies":null}}`},
	{"FloatingIP", "two addresses must be of two families", `{"spec":{"addresses":["192.0.2.1","192.0.2.2"],"ipFamilies":null}}`},
	{"IPAddressPool", "each address must be a prefix", `{"spec":{"addresses":["192.0.2.1-192.0.2.x"]}}`},
	{"IPAddressPool", "a pool cannot hold every address", `{"spec":{"addresses":["::/0"]}}`},
	{"IPAddressPool", "reuseDelay must not be negative", `{"spec":{"reuseDelay":"-1s"}}`},
	{"IPAddressPool", "each source range must be a prefix", `{"spec":{"sourceRanges":["10.0.0.0/33"]}}`},
}

const conditionsRule = "the times and generations of conditions"

// outside are values of conditions that the rule on them refuses.
var outside = []string{`"lastTransitionTime":"0000-01-01T00:00:00Z"`, `"lastTransitionTime":"2026-01-02T03:04:05Z","observedGeneration":4611686018427387905`}

// samples returns what breaks the rules of a kind.
func samples(c crd) []breach {
	out := slices.DeleteFunc(slices.Clone(broken), func(b breach) bool { return b.kind != c.name })
	if _, ok := c.schema.Properties["status"].Properties["conditions"]; ok {
		for _, field := range outside {
			out = append(out, breach{c.name, conditionsRule,
				`{"status":{"conditions":[{"type":"Valid","status":"True","reason":"Valid","message":"",` + field + `}]}}`})
		}
	}
	return out
}

func exampleParts(c crd) map[string]any {
	var o any
	example(c.schema, "", func(v any) { o = v }, func() {}, new([]leaf))
	return o.(map[string]any)
}

// testRules: every rule in the CRDs refuses its sample, with its message; and the example stands.
func (s oldest) testRules(t *testing.T) {
	for _, c := range readCRDs(t) {
		rules := map[string]bool{}
		messages(c.schema, func(m string) { rules[m] = false })
		for i, b := range samples(c) {
			parts := exampleParts(c)
			for part, fields := range unmarshal(t, b.parts) {
				maps.Copy(parts[part].(map[string]any), fields.(map[string]any))
			}
			err := s.store(t.Context(), c.name, fmt.Sprintf("rule-%d", i), parts)
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), b.message) {
				t.Errorf("%s %s: got %v, want %q", c.name, b.parts, err, b.message)
			}
			maps.DeleteFunc(rules, func(rule string, _ bool) bool { return strings.HasPrefix(rule, b.message) })
		}
		for rule := range rules {
			t.Errorf("no sample breaks the rule %q of %s", rule, c.name)
		}
		if err := s.store(t.Context(), c.name, "example", exampleParts(c)); err != nil {
			t.Errorf("%s: the example is refused: %v", c.name, err)
		}
	}
}

// messages calls fn with the message of every rule of a schema.
func messages(s *structuralschema.Structural, fn func(string)) {
	for _, x := range s.XValidations {
		fn(x.Message)
	}
	for _, p := range s.Properties {
		messages(&p, fn)
	}
	if s.Items != nil {
		messages(s.Items, fn)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Structural != nil {
		messages(s.AdditionalProperties.Structural, fn)
	}
}

func unmarshal(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

const (
	tooLarge = `{"spec":{"addresses":["192.0.2.0/24"],"quota":{"perNamespace":{"ipv4":9999999999}}}}`
)

// testBounds: numbers that int32 cannot hold, and dates of another shape, are refused by our bounds and patterns: this
// server enforces no format of numbers.
func (s oldest) testBounds(t *testing.T) {
	for _, tt := range []struct{ kind, parts, want string }{
		{"IPAddressPool", tooLarge, "should be less than or equal to 2147483647"},
		{"SpeakerState", `{"status":{"observed":"2026-01-02T03:04:05Z"}}`, "should match"},
		{"SpeakerState", `{"status":{"unreachable":[{"node":"w2","since":"2026-01-02T03:04:05.678901+01:00"}]}}`, "should match"},
	} {
		err := s.store(t.Context(), tt.kind, "bound", unmarshal(t, tt.parts))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.parts, err, tt.want)
		}
		plural, _ := resource(tt.kind)
		if err := s.holdfast.Delete().Resource(plural).Name("bound").Do(t.Context()).Error(); ignoreNotFound(err) != nil {
			t.Error(err)
		}
	}
}
