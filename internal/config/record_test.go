package config

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestRecord: the record is read as it was written, only on the object that it is of, and only whole.
func TestRecord(t *testing.T) {
	held := origins("192.0.2.1=lan#3x", "2001:db8::1=lan6#3x", "203.0.113.9=old#released", "203.0.113.8=fip")
	const text = "uid=u1 192.0.2.1=lan#3x 2001:db8::1=lan6#3x 203.0.113.9=old#released 203.0.113.8=fip"
	c, stands := Record("u1", held)
	if !stands || c.Message != text || c.Type != v1beta1.ConditionAddressRecord {
		t.Errorf("wrote %v, %v", c, stands)
	}
	if _, stands := Record("u1", nil); stands {
		t.Error("there is a record of nothing")
	}
	var many lb.Origins
	for a := netip.MustParseAddr("192.0.2.1"); len(many) < 2*maxOrigins; a = a.Next() {
		many = append(many, lb.Origin{Address: a, Pool: strings.Repeat("p", 253), Terms: "3x"})
	}
	for _, tt := range []struct {
		name, uid, text string
		want            lb.Origins
	}{
		{"its own", "u1", text, held},
		{"of another object", "u2", text, nil},
		{"of an object with a longer UID", "u", text, nil},
		{"none", "u1", "", nil},
		{"empty", "u1", "uid=u1", nil},
		{"empty items", "u1", "uid=u1 ", nil},
		{"no pool", "u1", "uid=u1 192.0.2.1", nil},
		{"another spelling", "u1", "uid=u1 2001:db8:0::1=lan6", nil},
		{"IPv4 in IPv6", "u1", "uid=u1 ::ffff:192.0.2.1=lan", nil},
		{"empty terms", "u1", "uid=u1 192.0.2.1=lan#", nil},
		{"a part that cannot be read", "u1", "uid=u1 192.0.2.1=lan#3x eaten", nil},
		{"too many", "u1", recordTextOf("u1", many), nil},
		{"as many as fit", "u1", recordText("u1", many), many[:maxOrigins]},
	} {
		got := readRecord(types.UID(tt.uid), []metav1.Condition{{Type: v1beta1.ConditionAddressRecord, Message: tt.text}})
		if diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%s: -want +got\n%s", tt.name, diff)
		}
	}
}

// recordTextOf is recordText without a bound.
func recordTextOf(uid types.UID, list lb.Origins) string {
	text := recordText(uid, list[:1])
	for _, o := range list[1:] {
		_, item, _ := strings.Cut(recordText(uid, lb.Origins{o}), " ")
		text += " " + item
	}
	return text
}

// FuzzRecord: whatever stands in the condition, what is read of it is what Record writes.
func FuzzRecord(f *testing.F) {
	f.Add("u", "uid=u 192.0.2.1=lan#3x 2001:db8::1=lan6#released")
	f.Add("", "uid= 192.0.2.1==#")
	f.Fuzz(func(t *testing.T, uid, text string) {
		conditions := []metav1.Condition{{Type: v1beta1.ConditionAddressRecord, Message: text}}
		got := readRecord(types.UID(uid), conditions)
		if got == nil {
			return
		}
		c, stands := Record(types.UID(uid), got)
		if !stands || c.Message != text || len(got) > maxOrigins {
			t.Errorf("read %v of %q, which is written %q", got, text, c.Message)
		}
	})
}
