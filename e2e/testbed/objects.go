package testbed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	yamlstream "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// manager is the field manager of server-side apply.
const manager = "holdfast-testbed"

// Decode reads objects of YAML.
func Decode(text []byte) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	documents := yamlstream.NewDocumentDecoder(io.NopCloser(bytes.NewReader(text)))
	defer documents.Close()
	// The decoder hands out what fits: every document is smaller than the whole.
	buf := make([]byte, len(text)+1)
	for {
		n, err := documents.Read(buf)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("split YAML: %w", err)
		}
		var o unstructured.Unstructured
		if err := yaml.Unmarshal(buf[:n], &o.Object); err != nil {
			return nil, fmt.Errorf("read YAML: %w", err)
		}
		if len(o.Object) > 0 {
			out = append(out, &o)
		}
	}
}

// Apply applies every object of the YAML, server-side. Objects without a
// namespace that need one get the one given.
func (b *Bed) Apply(ctx context.Context, namespace string, text []byte) error {
	objects, err := Decode(text)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if err := b.ApplyObject(ctx, namespace, o); err != nil {
			return err
		}
	}
	return nil
}

// ApplyFile applies a file of the repository.
func (b *Bed) ApplyFile(ctx context.Context, namespace string, path ...string) error {
	text, err := os.ReadFile(b.Path(path...))
	if err != nil {
		return err
	}
	return b.Apply(ctx, namespace, text)
}

// ApplyObject applies one object, server-side. The error that it wraps is the API server's.
func (b *Bed) ApplyObject(ctx context.Context, namespace string, o *unstructured.Unstructured) error {
	client, err := b.client(o, namespace)
	if err != nil {
		return err
	}
	body, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	force := true
	_, err = client.Patch(
		ctx,
		o.GetName(),
		types.ApplyPatchType,
		body,
		metav1.PatchOptions{FieldManager: manager, Force: &force},
	)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// Delete deletes every object of the YAML; what is not there is no error.
func (b *Bed) Delete(ctx context.Context, namespace string, text []byte) error {
	objects, err := Decode(text)
	if err != nil {
		return err
	}
	for _, o := range objects {
		client, err := b.client(o, namespace)
		if err != nil {
			return err
		}
		if err := client.Delete(ctx, o.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

func (b *Bed) client(o *unstructured.Unstructured, namespace string) (dynamic.ResourceInterface, error) {
	kind := o.GroupVersionKind()
	mapping, err := b.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, fmt.Errorf("find kind %s: %w", kind.Kind, err)
	}
	client := b.dynamic.Resource(mapping.Resource)
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return client, nil
	}
	if own := o.GetNamespace(); own != "" {
		namespace = own
	}
	return client.Namespace(namespace), nil
}

// Resources of Holdfast's API, as in URLs.
const (
	Pools             = "ipaddresspools"
	L2Advertisements  = "l2advertisements"
	EgressAllocations = "egressallocations"
	BGPAdvertisements = "bgpadvertisements"
	Peers             = "bgppeers"
	FloatingIPs       = "floatingips"
	PoolMemories      = "poolmemories"
	SpeakerStates     = "speakerstates"
)

// Resource returns a client of one of Holdfast's resources.
func (b *Bed) Resource(resource string) dynamic.NamespaceableResourceInterface {
	return b.dynamic.Resource(schema.GroupVersionResource{
		Group: v1beta1.GroupVersion.Group, Version: v1beta1.GroupVersion.Version, Resource: resource,
	})
}

// Valid returns the condition Valid of one of Holdfast's objects. It is an error if the condition is of an earlier
// generation than the object: the controller has not read the change yet, and decides without it.
func (b *Bed) Valid(ctx context.Context, resource, name string) (metav1.Condition, error) {
	o, err := b.Resource(resource).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return metav1.Condition{}, fmt.Errorf("get %s %s: %w", resource, name, err)
	}
	var typed struct {
		Status v1beta1.Status `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &typed); err != nil {
		return metav1.Condition{}, fmt.Errorf("read %s %s: %w", resource, name, err)
	}
	c := meta.FindStatusCondition(typed.Status.Conditions, v1beta1.ConditionValid)
	if c == nil {
		return metav1.Condition{}, fmt.Errorf("%s %s has no condition %s", resource, name, v1beta1.ConditionValid)
	}
	if c.ObservedGeneration != o.GetGeneration() {
		return metav1.Condition{}, fmt.Errorf("%s %s has a condition %s of generation %d, and is at %d", resource, name,
			v1beta1.ConditionValid, c.ObservedGeneration, o.GetGeneration())
	}
	return *c, nil
}

// ignoreGone treats NotFound as success.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
