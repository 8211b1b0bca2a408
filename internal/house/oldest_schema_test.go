//go:build oldest

package house

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"golang.org/x/sync/errgroup"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// oldestKinds is a server with a client that reads our kinds as the daemons do.
type oldestKinds struct{ holdfast rest.Interface }

func newOldestKinds(t *testing.T) oldestKinds {
	t.Helper()
	config := newOldest(t).config
	clients, err := k8s.ClientsFor(config, "test")
	must(t, err)
	must(t, clients.WaitForVersion(t.Context(), slog.New(slog.DiscardHandler)))
	server, err := discovery.NewDiscoveryClientForConfigOrDie(config).ServerVersion()
	if err != nil || !strings.HasPrefix(server.GitVersion, strings.TrimSuffix("v"+k8s.Oldest, "0")) {
		t.Fatalf("the server is %v, want one like %s: %v", server, k8s.Oldest, err)
	}
	scheme := runtime.NewScheme()
	must(t, v1beta1.AddToScheme(scheme))
	config.GroupVersion, config.APIPath = &v1beta1.GroupVersion, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	holdfast, err := rest.RESTClientFor(config)
	must(t, err)
	return oldestKinds{holdfast}
}

// TestOldest tries our CRDs on the oldest supported Kubernetes.
func TestOldest(t *testing.T) {
	s := newOldestKinds(t)
	t.Run("Rules", s.testRules)
	t.Run("Bounds", s.testBounds)
	t.Run("Extremes", s.testExtremes)
}

// resource returns the plural of our kind, and its namespace.
func resource(kind string) (plural, namespace string) {
	r, _ := meta.UnsafeGuessKindToResource(v1beta1.GroupVersion.WithKind(kind))
	if kind == "FloatingIP" {
		namespace = metav1.NamespaceDefault
	}
	return r.Resource, namespace
}

// store creates an object of spec and status.
func (s oldestKinds) store(ctx context.Context, kind, name string, parts map[string]any) error {
	o := map[string]any{"apiVersion": v1beta1.GroupVersion.String(), "kind": kind}
	maps.Copy(o, parts)
	o["metadata"] = map[string]any{"name": name}
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	plural, namespace := resource(kind)
	result := s.holdfast.Post().NamespaceIfScoped(namespace, namespace != "").Resource(plural).Body(body).Do(ctx)
	if err := result.Error(); err != nil {
		return err
	}
	raw, err := result.Raw()
	if err != nil {
		return err
	}
	var created map[string]any
	if err := json.Unmarshal(raw, &created); err != nil || created["status"] != nil || parts["status"] == nil {
		return err
	}
	patch, err := json.Marshal([]any{map[string]any{"op": "add", "path": "/status", "value": parts["status"]}})
	if err != nil {
		return err
	}
	return s.holdfast.Patch(types.JSONPatchType).NamespaceIfScoped(namespace, namespace != "").Resource(plural).Name(name).
		SubResource("status").Body(patch).Do(ctx).Error()
}

// validName returns the name of the object of a number.
func (c crd) validName(i int) string {
	if c.name == "EgressAllocation" {
		return fmt.Sprintf("10.0.%d.%d", i/256, i%256)
	}
	return fmt.Sprintf("x%05d", i)
}

// trial is an object with one extreme value.
type trial struct {
	what, name string
	body       []byte
}

// trials returns an object for every extreme of every field of a kind.
func trials(t *testing.T, c crd) []trial {
	t.Helper()
	var out []trial
	o, leaves := c.example()
	add := func(what string) {
		body, err := json.Marshal(o)
		must(t, err)
		out = append(out, trial{what, c.validName(len(out)), body})
	}
	add("example")
	for what := range extreme(leaves) {
		add(what)
	}
	return out
}

// testExtremes: the server refuses an extreme value, or its object can be read. The tests without a server rely on the
// same validation.
func (s oldestKinds) testExtremes(t *testing.T) {
	for _, c := range readCRDs(t) {
		t.Run(c.name, func(t *testing.T) {
			all := trials(t, c)
			admitted := make([]bool, len(all))
			var group errgroup.Group
			group.SetLimit(16)
			for i, x := range all {
				group.Go(func() error { return s.try(t, c, x, &admitted[i]) })
			}
			must(t, group.Wait())
			if !admitted[0] {
				t.Fatal("the example is refused")
			}
			s.checkReadable(t, c, admitted)
		})
	}
}

// try stores an object, and compares the server's verdict with what package apitest says.
func (s oldestKinds) try(t *testing.T, c crd, x trial, admitted *bool) error {
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(x.body, &parts); err != nil {
		return err
	}
	values := map[string]any{}
	for name, part := range parts {
		values[name] = part
	}
	err := s.store(t.Context(), c.name, x.name, values)
	if err != nil && !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
		return fmt.Errorf("%s: %w", x.what, err)
	}
	*admitted = err == nil
	if predicted := c.Check(x.body); (predicted == nil) != *admitted {
		t.Errorf("%s: the server says %v, package apitest %v", x.what, err, predicted)
	}
	return nil
}

// checkReadable lists all objects of a kind as the daemons do.
func (s oldestKinds) checkReadable(t *testing.T, c crd, admitted []bool) {
	t.Helper()
	plural, _ := resource(c.name)
	list, err := s.holdfast.Get().Resource(plural).Do(t.Context()).Get()
	must(t, err)
	stored := len(slices.DeleteFunc(admitted, func(in bool) bool { return !in }))
	if items, err := meta.ExtractList(list); err != nil || len(items) < stored {
		t.Errorf("%d objects are stored, %d read: %v", stored, len(items), err)
	}
}

// breach is parts of an object of a kind that break a rule, with the beginning of the rule's message.
type breach struct{ kind, message, parts string }

// broken break the rules on spec. The rest of the object is an example.
var broken = []breach{
	{"BFDProfile", "echo mode is not supported", `{"spec":{"echoMode":true}}`},
	{
		"BGPAdvertisement",
		"serviceSelectors pick single addresses", `{"spec":{"serviceSelectors":[{}],"aggregationLength":24}}`,
	},
	{"BGPAdvertisement", "the numbers of a community go to 65535", `{"spec":{"communities":["65536:1"]}}`},
	{"Community", "the numbers of a community go to 65535", `{"spec":{"communities":[{"name":"a","value":"65536:1"}]}}`},
	{"BGPPeer", "ebgpMultiHop is for peers of another AS", `{"spec":{"ebgpMultiHop":true,"myASN":64513}}`},
	{"BGPPeer", "write either peerASN, or dynamicASN", `{"spec":{"dynamicASN":"external"}}`},
	{"BGPPeer", "localASN is for peers of another AS", `{"spec":{"localASN":64513,"peerASN":64513}}`},
	{"BGPPeer", "ttlSecurity and ebgpMultiHop exclude each other", `{"spec":{"ttlSecurity":2,"ebgpMultiHop":true}}`},
	{
		"BGPPeer",
		"write either password or passwordSecret", `{"spec":{"password":"secret","passwordSecret":{"name":"router"}}}`,
	},
	{
		"BGPPeer",
		"passwordSecret needs the name of the Secret", `{"spec":{"passwordSecret":{"namespace":"holdfast-system"}}}`,
	},
	{"BGPPeer", "sessions within a VRF are not served", `{"spec":{"vrf":"red"}}`},
	{"BGPPeer", "sourceAddress and peerAddress must be of one", `{"spec":{"sourceAddress":"2001:db8::1"}}`},
	{"BGPPeer", "write either peerAddress, or interface", `{"spec":{"interface":"eth0"}}`},
	{"BGPPeer", "interface and sourceAddress exclude each other", `{"spec":{"interface":"eth0","peerAddress":null}}`},
	{
		"BGPPeer",
		"interface and ebgpMultiHop exclude each other",
		`{"spec":{"interface":"eth0","peerAddress":null,"sourceAddress":null,"ebgpMultiHop":true}}`,
	},
	{"BGPPeer", "keepaliveTime must not be longer", `{"spec":{"keepaliveTime":"91s"}}`},
	{"BGPPeer", "peerAddress must be an IPv4 or IPv6", `{"spec":{"peerAddress":"192.0.2.256"}}`},
	{"BGPPeer", "sourceAddress must be an IPv4 or IPv6", `{"spec":{"sourceAddress":"router"}}`},
	{"BGPPeer", "holdTime must be between 3s", `{"spec":{"holdTime":"2s"}}`},
	{"BGPPeer", "keepaliveTime must be at least 1s", `{"spec":{"keepaliveTime":"999ms"}}`},
	{"BGPPeer", "connectTime must be between 1s", `{"spec":{"connectTime":"65536s"}}`},
	{"BGPPeer", "routerID must have the form", `{"spec":{"routerID":"2001:db8::1"}}`},
	{"EgressAllocation", "the name must be an IPv4 address", `{}`},
	{
		"FloatingIP",
		"each of addresses must be of one of ipFamilies",
		`{"spec":{"addresses":["2001:db8::1"],"ipFamilies":["IPv4"]}}`,
	},
	{
		"FloatingIP",
		"each address must be an IPv4 or IPv6 address", `{"spec":{"addresses":["192.0.2.0/24"],"ipFamilies":null}}`,
	},
	{
		"FloatingIP",
		"two addresses must be of two families", `{"spec":{"addresses":["192.0.2.1","192.0.2.2"],"ipFamilies":null}}`,
	},
	{"IPAddressPool", "each address must be a prefix", `{"spec":{"addresses":["192.0.2.1-192.0.2.x"]}}`},
	{"IPAddressPool", "a range begins with its lowest address", `{"spec":{"addresses":["192.0.2.20-192.0.2.10"]}}`},
	{"IPAddressPool", "a pool cannot hold every address", `{"spec":{"addresses":["::/0"]}}`},
	{"IPAddressPool", "reuseDelay must not be negative", `{"spec":{"reuseDelay":"-1s"}}`},
	{"IPAddressPool", "each source range must be a prefix", `{"spec":{"sourceRanges":["10.0.0.0/33"]}}`},
}

const conditionsRule = "the times and generations of conditions"

// outside are values of conditions that the rule on them refuses.
var outside = []string{
	`"lastTransitionTime":"0000-01-01T00:00:00Z"`,
	`"lastTransitionTime":"2026-01-02T03:04:05Z","observedGeneration":4611686018427387905`,
}

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
	o, _ := c.example()
	return o.(map[string]any)
}

// testRules: every rule in the CRDs refuses its sample, with its message; and the example stands.
func (s oldestKinds) testRules(t *testing.T) {
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
		if err := s.store(t.Context(), c.name, c.validName(50_000), exampleParts(c)); err != nil {
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
	must(t, json.Unmarshal([]byte(text), &out))
	return out
}

// testBounds: numbers that int32 cannot hold, and dates of another shape, are refused by our bounds and patterns: this
// server enforces no format of numbers.
func (s oldestKinds) testBounds(t *testing.T) {
	for _, tt := range []struct{ kind, parts, want string }{
		{
			"IPAddressPool",
			`{"spec":{"addresses":["192.0.2.0/24"],"quota":{"perNamespace":{"ipv4":9999999999}}}}`,
			"should be less than or equal to 2147483647",
		},
		{"SpeakerState", `{"status":{"observed":"2026-01-02T03:04:05Z"}}`, "should match"},
		{
			"SpeakerState",
			`{"status":{"unreachable":[{"node":"w2","since":"2026-01-02T03:04:05.678901+01:00"}]}}`, "should match",
		},
	} {
		err := s.store(t.Context(), tt.kind, "bound", unmarshal(t, tt.parts))
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.parts, err, tt.want)
		}
		plural, _ := resource(tt.kind)
		err = s.holdfast.Delete().Resource(plural).Name("bound").Do(t.Context()).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
}
