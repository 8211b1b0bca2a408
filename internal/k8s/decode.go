package k8s

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// tolerant reads objects of our group one by one, and field by field where an object cannot be read as a
// whole. Otherwise a single number that is too large for its Go type fails the list of all objects of its
// kind: an older schema may have admitted it, and servers before Kubernetes 1.36 do not enforce formats.
type tolerant struct {
	runtime.NegotiatedSerializer
	scheme *runtime.Scheme
}

// DecoderToVersion implements runtime.NegotiatedSerializer. Lists, watches and single objects use it.
func (t tolerant) DecoderToVersion(d runtime.Decoder, gv runtime.GroupVersioner) runtime.Decoder {
	return tolerantDecoder{t.NegotiatedSerializer.DecoderToVersion(d, gv), t.scheme}
}

type tolerantDecoder struct {
	runtime.Decoder
	scheme *runtime.Scheme
}

// Decode implements runtime.Decoder. It costs nothing as long as everything can be read.
func (d tolerantDecoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	out, gvk, err := d.Decoder.Decode(data, defaults, into)
	if err == nil {
		return out, gvk, unmarkAll(out)
	}
	var kind metav1.TypeMeta
	if utiljson.Unmarshal(data, &kind) != nil || kind.GroupVersionKind().Group != v1beta1.GroupVersion.Group {
		return out, gvk, err
	}
	read := kind.GroupVersionKind()
	out, err2 := d.salvage(data, read)
	if err2 != nil {
		return nil, gvk, fmt.Errorf("%w; item by item: %w", err, err2)
	}
	if into != nil && reflect.TypeOf(into) == reflect.TypeOf(out) {
		reflect.ValueOf(into).Elem().Set(reflect.ValueOf(out).Elem())
		out = into
	}
	return out, &read, nil
}

// unmarkAll removes our mark from objects that can be read: it may only come from this package.
func unmarkAll(o runtime.Object) error {
	if meta.IsListType(o) {
		return meta.EachListItem(o, unmark)
	}
	return unmark(o)
}

func unmark(o runtime.Object) error {
	if m, err := meta.Accessor(o); err == nil {
		delete(m.GetAnnotations(), config.MarkUnreadable)
	}
	return nil
}

// salvage reads what can be read of an object, or of each item of a list.
func (d tolerantDecoder) salvage(data []byte, kind schema.GroupVersionKind) (runtime.Object, error) {
	out, err := d.scheme.New(kind)
	if err != nil || !meta.IsListType(out) {
		if err == nil {
			err = salvageObject(data, out)
		}
		return out, err
	}
	var list struct {
		metav1.TypeMeta
		Metadata json.RawMessage   `json:"metadata"`
		Items    []json.RawMessage `json:"items"`
	}
	if err := utiljson.Unmarshal(data, &list); err != nil {
		return nil, err
	}
	head, err := json.Marshal(map[string]any{"apiVersion": list.APIVersion, "kind": list.Kind, "metadata": list.Metadata})
	if err != nil {
		return nil, err
	}
	if err := utiljson.Unmarshal(head, out); err != nil {
		return nil, err
	}
	items := make([]runtime.Object, len(list.Items))
	for i, item := range list.Items {
		if items[i], err = d.scheme.New(kind.GroupVersion().WithKind(strings.TrimSuffix(kind.Kind, "List"))); err != nil {
			return nil, err
		}
		if err := salvageObject(item, items[i]); err != nil {
			return nil, err
		}
	}
	return out, meta.SetList(out, items)
}

// salvageObject reads the fields of each part of an object that can be read, and marks the object with
// those that cannot. It fails only if the metadata cannot be read, which the API server itself reads.
func salvageObject(data []byte, into runtime.Object) error {
	if err := utiljson.Unmarshal(data, into); err == nil {
		return unmark(into)
	}
	parts := map[string]json.RawMessage{}
	if err := utiljson.Unmarshal(data, &parts); err != nil {
		return err
	}
	// What the failed attempt read is not to be relied on.
	reflect.ValueOf(into).Elem().SetZero()
	var unread []string
	for _, part := range slices.Sorted(maps.Keys(parts)) {
		fields := map[string]json.RawMessage{}
		if part != "spec" && part != "status" || utiljson.Unmarshal(parts[part], &fields) != nil {
			if err := merge(into, map[string]any{part: parts[part]}); err != nil && part == "metadata" {
				return err
			} else if err != nil {
				unread = append(unread, part+": "+err.Error())
			}
			continue
		}
		for _, field := range slices.Sorted(maps.Keys(fields)) {
			if err := merge(into, map[string]any{part: map[string]any{field: fields[field]}}); err != nil {
				unread = append(unread, part+"."+field+": "+err.Error())
			}
		}
	}
	m, err := meta.Accessor(into)
	if err == nil {
		metav1.SetMetaDataAnnotation(m.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta), config.MarkUnreadable, strings.Join(unread, "\n"))
	}
	return err
}

// merge reads a part of an object into it, wholly or not at all.
func merge(into runtime.Object, part map[string]any) error {
	body, err := json.Marshal(part)
	if err != nil {
		return err
	}
	if err := utiljson.Unmarshal(body, reflect.New(reflect.TypeOf(into).Elem()).Interface()); err != nil {
		return err
	}
	return utiljson.Unmarshal(body, into)
}
