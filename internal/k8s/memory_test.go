package k8s

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestUpdateMemory: a memory is created when there is something to remember, written only as it was read, and never
// in vain. It belongs to its pool.
func TestUpdateMemory(t *testing.T) {
	const owners = `"ownerReferences":[{"apiVersion":"holdfast.dev/v1beta1","kind":"IPAddressPool","name":"p","uid":"1","controller":true}]`
	some, none := v1beta1.PoolMemoryStatus{Forgotten: 5}, v1beta1.PoolMemoryStatus{}
	memory := func(owner types.UID, s v1beta1.PoolMemoryStatus) *v1beta1.PoolMemory {
		return &v1beta1.PoolMemory{ObjectMeta: metav1.ObjectMeta{
			Name: "p", ResourceVersion: "7", OwnerReferences: []metav1.OwnerReference{{UID: owner, Controller: new(true)}},
		}, Status: s}
	}
	patch := func(status string) []string {
		return []string{`{"metadata":{` + owners + `,"resourceVersion":"7"},"status":` + status + `}`}
	}
	for _, tt := range []struct {
		name string
		have *v1beta1.PoolMemory
		want v1beta1.PoolMemoryStatus
		sent []string
	}{
		{"nothing", nil, none, nil},
		{"the first", nil, some, []string{`{"kind":"PoolMemory","apiVersion":"holdfast.dev/v1beta1","metadata":{"name":"p",` + owners +
			`},"status":{"forgotten":5}}`}},
		{"more", memory("1", none), some, patch(`{"forgotten":5}`)},
		{"no more", memory("1", some), none, patch(`{"forgotten":null}`)},
		{"the same", memory("1", some), some, nil},
		{"the same of an earlier pool", memory("0", some), some, patch(`{"forgotten":5}`)},
		{"an earlier pool's", memory("0", some), none, nil},
	} {
		k, sent := writingTo(t, "PoolMemory")
		pool := &v1beta1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "1"}}
		if err := k.UpdateMemory(t.Context(), pool, tt.have, tt.want); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff(tt.sent, *sent); diff != "" && len(tt.sent)+len(*sent) > 0 {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
