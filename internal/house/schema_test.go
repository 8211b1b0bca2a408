package house

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/apitest"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// crd is one of our kinds as the oldest supported API server validates it.
type crd struct {
	name   string
	schema *structuralschema.Structural
	apitest.CRD
}

func readCRDs(t testing.TB) []crd {
	t.Helper()
	all, err := apitest.Read()
	if err != nil || len(all) != 10 || apitest.Oldest != k8s.Oldest {
		t.Fatal(len(all), apitest.Oldest, err)
	}
	var out []crd
	for _, c := range all {
		out = append(out, crd{c.Kind, c.Schema, c})
	}
	return out
}

// admits reports whether the API server accepts an object, which it reads from JSON.
func (c crd) admits(body []byte) bool { return c.Check(body) == nil }

// decodes returns an error if the Go type cannot hold an object as the API server stores it: 1.0 as 1.
func (c crd) decodes(t testing.TB, body []byte) error {
	var stored any
	if err := utiljson.Unmarshal(body, &stored); err != nil {
		return err
	}
	body, err := json.Marshal(stored)
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	must(t, v1beta1.AddToScheme(scheme))
	o, err := scheme.New(v1beta1.GroupVersion.WithKind(c.name))
	must(t, err)
	return utiljson.Unmarshal(body, o)
}

// examples are values that rules admit, by the name of their field.
var examples = map[string]any{
	"addresses": "192.0.2.1", "sourceRanges": "192.0.2.0/24", "peerAddress": "192.0.2.1", "sourceAddress": "192.0.2.2",
	"routerID": "192.0.2.3",
	"holdTime": "90s", "keepaliveTime": "30s", "connectTime": "5s", "reuseDelay": "10m", "communities": "65000:1",
	"address": "192.0.2.4",
	"first":   4096, "released": second,
	"observed": micro, "unreachable.since": micro, "silent.since": micro, "since": second, "time": second,
	"until": second, "boundSince": second,
	"lastTransitionTime": second, "communities.value": "65000:1", "communities.name": "ab", "vrf": "",
	"echoMode": false, "bfd": "up", "receiveInterval": 300,
	"transmitInterval": 300, "echoInterval": 50, "detectMultiplier": 3, "peerASN": 64513, "aggregationLength": 32,
	"aggregationLengthV6": 128, "type": "Valid",
	"reason": "Valid",
}

const (
	second = "2026-01-02T03:04:05Z"
	micro  = "2026-01-02T03:04:05.678901Z"
)

// alternatives are fields that exclude one of those in the example, which leaves them out.
var alternatives = []string{".spec.dynamicASN", ".spec.ebgpMultiHop", ".spec.interface", ".spec.passwordSecret"}

// leaf is a value in an object, with the way to replace it.
type leaf struct {
	path   string
	schema *structuralschema.Structural
	set    func(any)
	unset  func()
}

// restore gives the leaf the value of the example.
func (l leaf) restore() {
	if slices.Contains(alternatives, l.path) {
		l.unset()
		return
	}
	l.set(exampleOf(l.schema, l.path))
}

// example returns an object with every field that the schema has, and its leaves.
func example(s *structuralschema.Structural, path string, set func(any), unset func(), leaves *[]leaf) {
	*leaves = append(*leaves, leaf{path, s, set, unset})
	switch {
	case s.Type == "object" && s.AdditionalProperties != nil:
		set(map[string]any{"a": "b"})
	case s.Type == "object":
		o := map[string]any{}
		set(o)
		for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
			p := s.Properties[name]
			if path != "" || name == "spec" || name == "status" {
				set := func(v any) { o[name] = v }
				if slices.Contains(alternatives, path+"."+name) {
					*leaves = append(*leaves, leaf{path + "." + name, &p, set, func() { delete(o, name) }})
					continue
				}
				example(&p, path+"."+name, set, func() { delete(o, name) }, leaves)
			}
		}
	case s.Type == "array":
		list := []any{nil}
		set(list)
		example(s.Items, path, func(v any) { list[0] = v }, func() {}, leaves)
	default:
		set(exampleOf(s, path))
	}
}

// example returns an object of a kind with every field, and its leaves below the whole.
func (c crd) example() (o any, leaves []leaf) {
	example(c.schema, "", func(v any) { o = v }, func() {}, &leaves)
	o.(map[string]any)["metadata"] = map[string]any{"name": "192.0.2.1"}
	return o, leaves[1:]
}

// extreme gives each leaf each extreme value by turns, and afterwards the value of the example.
func extreme(leaves []leaf) iter.Seq[string] {
	return func(yield func(what string) bool) {
		for _, l := range leaves {
			if l.schema.Type == "object" || l.schema.Type == "array" {
				continue // their leaves are tried
			}
			for _, v := range extremes(l.schema) {
				if l.set(v); !yield(fmt.Sprintf("%s = %.60v", l.path, v)) {
					return
				}
			}
			l.restore()
		}
	}
}

func exampleOf(s *structuralschema.Structural, path string) any {
	names := strings.Split(path, ".")
	for _, name := range []string{strings.Join(names[max(0, len(names)-2):], "."), names[len(names)-1]} {
		if v, known := examples[name]; known {
			return v
		}
	}
	switch {
	case s.ValueValidation != nil && len(s.ValueValidation.Enum) > 0:
		return s.ValueValidation.Enum[0].Object
	case s.Type == "integer":
		return 1
	case s.Type == "boolean":
		return true
	}
	return "ab"
}

// extremes returns values at and beyond the bounds of a schema.
func extremes(s *structuralschema.Structural) []any {
	// The validation admits a list in place of a text with a format.
	out := []any{nil, true, false, map[string]any{}, []any{}, []any{second}}
	for _, n := range []string{
		"0", "-1", "1.0", "1e3", "127", "128", "255", "256", "65535", "65536", "2147483647", "2147483648",
		"-2147483648", "-2147483649", "4294967295", "4294967296", "9007199254740992", "4611686018427387904",
		"4611686018427388416", "9223372036854775807", "9223372036854775808", "-9223372036854775809",
		"18446744073709551616", "1e21", "1e30", "1.5",
	} {
		out = append(out, json.RawMessage(n))
	}
	for _, text := range []string{
		"", "a", "é", second, micro, "2026-01-02t03:04:05z", "2026-01-02T03:04:05.6Z",
		"2026-01-02T03:04:05.678901234Z", "2026-01-02T03:04:05+01:00", "2026-01-02T03:04:05.678901+01:00",
		"2026-01-02T03:04:05+99:99", "2026-02-30T03:04:05Z", "2026-02-30T03:04:05.678901Z", "0000-01-01T00:00:00Z",
		"9999-12-31T23:59:59Z", "9999-12-31T23:59:59.999999Z", "2026-01-02T24:00:00Z", "2026-01-02T03:04:60Z",
		"2026-01-02T03:04:05x6Z", "2026-01-02", "2026-01-02 03:04:05Z", "0", "0s", "1ns", "1.5h", "+1h", "-1s",
		"1h1m1s", "65535s", "2562047h", "2562048h", "9223372036854775807ns", "9223372036854775808ns", "1e3s", "1d", "1",
	} {
		out = append(out, text)
	}
	v := s.ValueValidation
	if v == nil {
		return out
	}
	for _, e := range v.Enum {
		out = append(out, e.Object)
	}
	for _, n := range []*float64{v.Minimum, v.Maximum} {
		if n != nil {
			out = append(out, *n-1, *n, *n+1)
		}
	}
	if v.MaxLength != nil && *v.MaxLength < 1<<16 {
		out = append(out, strings.Repeat("a", int(*v.MaxLength)), strings.Repeat("a", int(*v.MaxLength)+1))
	}
	return out
}

// No value that a schema admits fails to decode: one such object would make all of its kind unreadable.
func TestSchemaAdmitsOnlyWhatDecodes(t *testing.T) {
	for _, c := range readCRDs(t) {
		t.Run(c.name, func(t *testing.T) {
			o, leaves := c.example()
			c.check(t, o, "example")
			for what := range extreme(leaves) {
				c.check(t, o, what)
			}
			c.check(t, o, "example")
			for _, l := range slices.Backward(leaves) {
				l.unset()
				c.check(t, o, l.path+" unset")
			}
		})
	}
}

// check fails if the object is admitted and cannot be decoded, or if it is the example and refused.
func (c crd) check(t testing.TB, o any, what string) {
	t.Helper()
	body, err := json.Marshal(o)
	must(t, err)
	if !c.admits(body) {
		if what == "example" {
			t.Fatalf("the example is refused: %s", body)
		}
		return
	}
	if err := c.decodes(t, body); err != nil {
		t.Errorf("%s is admitted: %v", what, err)
	}
}

func FuzzSchema(f *testing.F) {
	crds := readCRDs(f)
	for seed := range int64(50) {
		f.Add(seed, "2026-01-02T03:04:05.678901Z", 1e10)
	}
	f.Fuzz(func(t *testing.T, seed int64, text string, number float64) {
		r := rand.New(rand.NewSource(seed))
		c := crds[r.Intn(len(crds))]
		o, leaves := c.example()
		for range 1 + r.Intn(4) {
			l := leaves[r.Intn(len(leaves))]
			values := append(extremes(l.schema), text, json.RawMessage(fmt.Sprint(int64(number))),
				json.RawMessage(fmt.Sprintf("%.0f", number)))
			if v := values[r.Intn(len(values))]; r.Intn(8) == 0 {
				l.unset()
			} else if _, err := json.Marshal(v); err == nil {
				l.set(v)
			}
		}
		c.check(t, o, fmt.Sprint(o))
	})
}

// The API server refuses what speakers cannot do. Intervals are milliseconds: a number that is too small or too large
// for them was perhaps meant as another unit.
func TestBFDProfileSchema(t *testing.T) {
	crds := readCRDs(t)
	profile := crds[slices.IndexFunc(crds, func(c crd) bool { return c.name == "BFDProfile" })]
	for spec, want := range map[string]string{
		`{}`: "",
		`{"receiveInterval":10,"transmitInterval":60000,"detectMultiplier":2,"echoInterval":50,"echoMode":false,"passiveMode":true,"minimumTtl":254}`: "",
		`{"receiveInterval":9}`:      "spec.receiveInterval",
		`{"transmitInterval":60001}`: "spec.transmitInterval",
		`{"detectMultiplier":1}`:     "spec.detectMultiplier",
		`{"minimumTtl":255}`:         "spec.minimumTtl",
		`{"echoMode":true}`:          "echo mode is not supported",
	} {
		err := profile.Check(fmt.Appendf(nil,
			`{"apiVersion":"holdfast.dev/v1beta1","kind":"BFDProfile","metadata":{"name":"a"},"spec":%s}`, spec))
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", spec, err, want)
		}
	}
}

// TestSpeakerOverwritesItsState: what a speaker writes of itself names every field that the schema has but those that
// others own. A merge patch leaves the rest as it is, readable or not.
func TestSpeakerOverwritesItsState(t *testing.T) {
	body, err := json.Marshal(v1beta1.SpeakerStateStatus{Observed: new(v1beta1.NewMicroTime(time.Now()))})
	must(t, err)
	var written map[string]any
	must(t, json.Unmarshal(body, &written))
	crds := readCRDs(t)
	state := crds[slices.IndexFunc(crds, func(c crd) bool { return c.name == "SpeakerState" })].schema.Properties["status"]
	for name := range state.Properties {
		if _, named := written[name]; !named && name != "conditions" {
			t.Errorf("status.%s would stay as it is", name)
		}
	}
	for _, name := range []string{"members", "owned"} {
		for within := range state.Properties[name].Properties {
			if _, named := written[name].(map[string]any)[within]; !named {
				t.Errorf("status.%s.%s would stay as it is", name, within)
			}
		}
	}
}

// TestEgressAllocationSchema: the name is an address in one form, and slices are aligned blocks without the first.
func TestEgressAllocationSchema(t *testing.T) {
	crds := readCRDs(t)
	allocation := crds[slices.IndexFunc(crds, func(c crd) bool { return c.name == "EgressAllocation" })]
	check := func(name, first, want string) {
		t.Helper()
		const format = `{"apiVersion":"holdfast.dev/v1beta1","kind":"EgressAllocation","metadata":{"name":%q},` +
			`"status":{"slices":[{"first":%s,"node":"a","namespace":"b"}]}}`
		err := allocation.Check([]byte(fmt.Sprintf(format, name, first)))
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s, %s: %v, want %q", name, first, err, want)
		}
	}
	for _, name := range []string{"192.0.2.7", "0.0.0.0", "2001-0db8-0000-0000-0000-0000-0000-0001"} {
		check(name, "61440", "")
	}
	for _, name := range []string{
		"192.0.2.07", "192.0.2", "192.0.2.7.1", "256.0.2.7", "a", "...", "2001-db8--1",
		"2001-0DB8-0000-0000-0000-0000-0000-0001", "2001-0db8-0000-0000-0000-0000-0000-00001",
		"2001-0db8-0000-0000-0000-0000-0000", "2001:0db8:0000:0000:0000:0000:0000:0001",
		"192.0.2.7-2001-0db8-0000-0000-0000-0000-0000-0001",
	} {
		check(name, "61440", "the name must be")
	}
	for _, first := range []string{"0", "4095", "4097", "65536", "-4096", "1e9"} {
		check("192.0.2.7", first, "status.slices[0].first")
	}
}
