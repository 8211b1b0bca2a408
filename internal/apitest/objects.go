package apitest

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
)

// Objects validates objects for a fake API server, and makes the test fail that wrote an invalid one.
type Objects struct {
	t     testing.TB
	group string
	kinds map[string]CRD
}

// cached are the results of Read, by version: it takes long.
var cached sync.Map

// New returns the validation of this Kubernetes.
func New(t testing.TB, kubernetes string) *Objects {
	t.Helper()
	once, _ := cached.LoadOrStore(kubernetes, sync.OnceValues(func() ([]CRD, error) { return Read(kubernetes) }))
	crds, err := once.(func() ([]CRD, error))()
	if err != nil {
		t.Fatal(err)
	}
	s := &Objects{t: t, kinds: map[string]CRD{}}
	for _, c := range crds {
		s.group, s.kinds[c.Kind] = c.Group, c
	}
	return s
}

// Patched applies a JSON merge patch (RFC 7396) to an object and returns the result, or why the API server would call it
// invalid.
func (s *Objects) Patched(o, patch map[string]any) (map[string]any, error) {
	out, _ := merged(o, patch).(map[string]any)
	err := s.check(out)
	if err != nil {
		s.t.Errorf("a real API server would refuse the patch %v: %v", patch, err)
	}
	return out, err
}

// check returns why the API server would call the object invalid. Objects of other groups are valid.
func (s *Objects) check(o map[string]any) error {
	if apiVersion, _ := o["apiVersion"].(string); !strings.HasPrefix(apiVersion, s.group+"/") {
		return nil
	}
	kind, _ := o["kind"].(string)
	c, known := s.kinds[kind]
	if !known {
		return errors.New("unknown kind " + kind)
	}
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return c.Check(body)
}

// merged returns the value that a merge patch makes of another. A null removes, also in what is new.
func merged(have, patch any) any {
	fields, isMap := patch.(map[string]any)
	if !isMap {
		return patch
	}
	before, _ := have.(map[string]any)
	out := maps.Clone(before)
	if out == nil {
		out = map[string]any{}
	}
	for name, value := range fields {
		if value == nil {
			delete(out, name)
		} else {
			out[name] = merged(out[name], value)
		}
	}
	return out
}
