package k8s

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

func newTolerantDecoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	codecs := tolerant{serializer.NewCodecFactory(scheme).WithoutConversion(), scheme}
	return codecs.DecoderToVersion(codecs.SupportedMediaTypes()[0].Serializer, v1beta1.GroupVersion)
}

const (
	goodPool = `{"apiVersion":"holdfast.dev/v1beta1","kind":"IPAddressPool","metadata":{"name":"good","annotations":{"holdfast.dev/unreadable":"spec: a user wrote this"}},"spec":{"addresses":["192.0.2.0/24"]}}`
	badPool  = `{"apiVersion":"holdfast.dev/v1beta1","kind":"IPAddressPool","metadata":{"name":"bad","resourceVersion":"7"},
		"spec":{"addresses":["198.51.100.0/24"],"quota":{"perNamespace":{"ipv4":1,"ipv6":9999999999}},"sourceRanges":["10.0.0.0/8"]},
		"status":{"assignedIPv4":3,"retained":[{"address":"198.51.100.1","service":"a/b","since":"yesterday"}]}}`
)

// One object that cannot be read is one: the others of the list are as they are, and of itself all fields but those.
func TestDecodeListWithUnreadable(t *testing.T) {
	list := &v1beta1.IPAddressPoolList{}
	body := `{"apiVersion":"holdfast.dev/v1beta1","kind":"IPAddressPoolList","metadata":{"resourceVersion":"9","continue":"x"},"items":[` + goodPool + "," +
		badPool + `]}`
	if _, _, err := newTolerantDecoder(t).Decode([]byte(body), nil, list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 2 || list.ResourceVersion != "9" || list.Continue != "x" {
		t.Fatalf("list = %+v", list)
	}
	if config.Unreadable(&list.Items[0]) != nil || len(list.Items[0].Spec.Addresses) != 1 {
		t.Errorf("the good pool is %+v", list.Items[0])
	}
	checkBadPool(t, &list.Items[1])
}

// A watch and a single read decode one object.
func TestDecodeUnreadable(t *testing.T) {
	o, _, err := newTolerantDecoder(t).Decode([]byte(badPool), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	checkBadPool(t, o.(*v1beta1.IPAddressPool))
	if o, _, err = newTolerantDecoder(t).Decode([]byte(goodPool), nil, nil); err != nil || config.Unreadable(o.(*v1beta1.IPAddressPool)) != nil {
		t.Errorf("an annotation of a user counts: %v %v", o, err)
	}
	if _, _, err = newTolerantDecoder(t).Decode([]byte(`{"kind":`), nil, nil); err == nil {
		t.Error("what is not JSON was read")
	}
}

func checkBadPool(t *testing.T, p *v1beta1.IPAddressPool) {
	t.Helper()
	fields := slices.Sorted(maps.Keys(config.Unreadable(p)))
	if diff := cmp.Diff([]string{"spec.quota", "status.retained"}, fields); diff != "" {
		t.Errorf("unreadable: -want +got\n%s", diff)
	}
	if p.Name != "bad" || p.ResourceVersion != "7" || p.Kind != "IPAddressPool" || p.Spec.Quota != nil || len(p.Spec.Addresses) != 1 ||
		len(p.Spec.SourceRanges) != 1 || p.Status.AssignedIPv4 != 3 || p.Status.Retained != nil {
		t.Errorf("pool = %+v", p)
	}
}

// A speaker that was taken over can write of itself what it likes.
func TestDecodeSpeakerState(t *testing.T) {
	body := `{"apiVersion":"holdfast.dev/v1beta1","kind":"SpeakerState","metadata":{"name":"n"},"status":{"observed":"2026-01-02T03:04:05Z","links":["eth0"]}}`
	o, _, err := newTolerantDecoder(t).Decode([]byte(body), nil, &v1beta1.SpeakerState{})
	if err != nil {
		t.Fatal(err)
	}
	s := o.(*v1beta1.SpeakerState)
	if s.Status.Observed != nil || len(s.Status.Links) != 1 || config.Unreadable(s)["status.observed"] == "" {
		t.Errorf("state = %+v", s)
	}
}
