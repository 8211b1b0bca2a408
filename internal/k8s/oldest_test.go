//go:build oldest

package k8s

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/apitest"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// oldest is a server of the oldest Kubernetes, with our kinds.
type oldest struct {
	Clients
	config *rest.Config
}

func newOldest(t *testing.T) oldest {
	t.Helper()
	config := apitest.Start(t)
	apitest.Install(t, config)
	clients, err := ClientsFor(config, "test")
	if err != nil {
		t.Fatal(err)
	}
	info, err := clients.kube.Discovery().ServerVersion()
	if err != nil || !strings.HasPrefix(info.GitVersion, strings.TrimSuffix("v"+Oldest, "0")) || checkVersion(info.GitVersion) != nil {
		t.Fatalf("the server is %v, want one like %s: %v", info, Oldest, err)
	}
	return oldest{clients, config}
}

// TestOldest tries our CRDs on the oldest supported Kubernetes.
func TestOldest(t *testing.T) {
	s := newOldest(t)
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
func (s oldest) store(ctx context.Context, kind, name string, parts map[string]any) error {
	o := map[string]any{"apiVersion": v1beta1.GroupVersion.String(), "kind": kind, "metadata": map[string]any{"name": name}}
	maps.Copy(o, parts)
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

// trial is an object with one extreme value.
type trial struct {
	what, name string
	body       []byte
}

// trials returns an object for every extreme of every field of a kind.
func trials(t *testing.T, c crd) []trial {
	t.Helper()
	var out []trial
	var o any
	add := func(what string) {
		body, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, trial{what, fmt.Sprintf("x%05d", len(out)), body})
	}
	var leaves []leaf
	example(c.schema, "", func(v any) { o = v }, func() {}, &leaves)
	add("example")
	for _, l := range leaves[1:] {
		if l.schema.Type == "object" || l.schema.Type == "array" {
			continue // their leaves are tried
		}
		for _, v := range extremes(l.schema) {
			l.set(v)
			add(fmt.Sprintf("%s = %.60v", l.path, v))
		}
		l.set(exampleOf(l.schema, l.path))
	}
	return out
}

// testExtremes: the server refuses an extreme value, or its object can be read. The tests without a server rely on the same
// validation.
func (s oldest) testExtremes(t *testing.T) {
	for _, c := range readCRDs(t) {
		t.Run(c.name, func(t *testing.T) {
			all := trials(t, c)
			admitted := make([]bool, len(all))
			var group errgroup.Group
			group.SetLimit(16)
			for i, x := range all {
				group.Go(func() error { return s.try(t, c, x, &admitted[i]) })
			}
			if err := group.Wait(); err != nil {
				t.Fatal(err)
			}
			if !admitted[0] {
				t.Fatal("the example is refused")
			}
			s.checkReadable(t, c, admitted)
		})
	}
}

// try stores an object, and compares the server's verdict with that of package crdtest.
func (s oldest) try(t *testing.T, c crd, x trial, admitted *bool) error {
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
		t.Errorf("%s: the server says %v, package crdtest %v", x.what, err, predicted)
	}
	return nil
}

// checkReadable lists all objects of a kind as the daemons do.
func (s oldest) checkReadable(t *testing.T, c crd, admitted []bool) {
	t.Helper()
	plural, _ := resource(c.name)
	list, err := s.holdfast.Get().Resource(plural).Do(t.Context()).Get()
	if err != nil {
		t.Fatal(err)
	}
	stored := len(slices.DeleteFunc(admitted, func(in bool) bool { return !in }))
	if items, err := meta.ExtractList(list); err != nil || len(items) < stored {
		t.Errorf("%d objects are stored, %d read: %v", stored, len(items), err)
	}
}
