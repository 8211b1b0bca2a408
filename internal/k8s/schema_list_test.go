package k8s

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestListInPlaceOfText: the API server's validation admits a list as a text with a format, such as a time. A
// field that has one is a Problem of the object alone: the rest of it is read. Null and the empty text are
// refused or can be read.
func TestListInPlaceOfText(t *testing.T) {
	tried := 0
	for _, c := range readCRDs(t) {
		var o any
		var leaves []leaf
		example(c.schema, "", func(v any) { o = v }, func() {}, &leaves)
		for _, l := range leaves[1:] {
			if l.schema.ValueValidation == nil || l.schema.ValueValidation.Format == "" || l.schema.Type != "string" {
				continue
			}
			for _, v := range []any{[]any{}, []any{"2026-01-02T03:04:05Z"}, nil, ""} {
				l.set(v)
				if body, unread := c.tolerated(t, o); body != nil {
					_, list := v.([]any)
					var want []string
					if list {
						tried++
						want = []string{strings.Join(strings.Split(l.path, ".")[1:min(3, len(strings.Split(l.path, ".")))], ".")}
					}
					if diff := cmp.Diff(want, unread); diff != "" {
						t.Errorf("%s %s = %v: unreadable: -want +got\n%s", c.name, l.path, v, diff)
					}
				}
			}
			l.set(exampleOf(l.schema, l.path))
		}
	}
	if tried == 0 {
		t.Error("no schema admits such a list: the tests need not leave it out")
	}
}

// tolerated returns an object as JSON, and its unreadable fields, if the API server admits it; else nil.
func (c crd) tolerated(t *testing.T, o any) (body []byte, unread []string) {
	t.Helper()
	parts := map[string]any{"apiVersion": v1beta1.GroupVersion.String(), "kind": c.name, "metadata": map[string]any{"name": "x"}}
	maps.Copy(parts, o.(map[string]any))
	body, err := json.Marshal(parts)
	if err != nil {
		t.Fatal(err)
	}
	if !c.admits(body) {
		return nil, nil
	}
	read, _, err := newTolerantDecoder(t).Decode(body, nil, nil)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return body, slices.Sorted(maps.Keys(config.Unreadable(read.(metav1.Object))))
}
