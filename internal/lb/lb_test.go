package lb

import (
	"encoding/json"
	"net/netip"
	"testing"
)

func TestRange(t *testing.T) {
	addr := netip.MustParseAddr
	r := Range{From: addr("192.0.2.10"), To: addr("192.0.2.20")}
	for _, tt := range []struct {
		a    string
		want bool
	}{
		{"192.0.2.9", false},
		{"192.0.2.10", true},
		{"192.0.2.20", true},
		{"192.0.2.21", false},
		{"::ffff:192.0.2.15", false},
		{"2001:db8::1", false},
	} {
		if got := r.Contains(addr(tt.a)); got != tt.want {
			t.Errorf("%v.Contains(%s) = %v, want %v", r, tt.a, got, tt.want)
		}
	}
	if !r.Overlaps(Range{From: addr("192.0.2.20"), To: addr("192.0.2.30")}) {
		t.Error("ranges that share their last address do not overlap")
	}
	if r.Overlaps(Range{From: addr("192.0.2.21"), To: addr("192.0.2.30")}) {
		t.Error("ranges that touch overlap")
	}
	if r.Overlaps(Range{From: addr("::"), To: addr("ffff::")}) {
		t.Error("ranges of two families overlap")
	}
}

func TestSelector(t *testing.T) {
	labels := map[string]string{"zone": "a", "rack": "1"}
	for _, tt := range []struct {
		name string
		s    Selector
		want bool
	}{
		{"empty", nil, true},
		{"in", Selector{{"zone", In, []string{"b", "a"}}}, true},
		{"in, other value", Selector{{"zone", In, []string{"b"}}}, false},
		{"in, no label", Selector{{"row", In, []string{""}}}, false},
		{"not in", Selector{{"zone", NotIn, []string{"b"}}}, true},
		{"not in, no label", Selector{{"row", NotIn, []string{"b"}}}, true},
		{"exists", Selector{{"rack", Exists, nil}}, true},
		{"does not exist", Selector{{"rack", DoesNotExist, nil}}, false},
		{"all must hold", Selector{{"zone", Exists, nil}, {"rack", In, []string{"2"}}}, false},
	} {
		if got := tt.s.Matches(labels); got != tt.want {
			t.Errorf("%s: Matches = %v, want %v", tt.name, got, tt.want)
		}
	}
	if MatchesAny(nil, labels) {
		t.Error("no selectors match something")
	}
}

func TestMarshalText(t *testing.T) {
	for _, tt := range []struct {
		v    any
		want string
	}{
		{Key{"default", "web"}, `"default/web"`},
		{Object{Kind: "Service", Namespace: "default", Name: "web"}, `"Service default/web"`},
		{Object{Kind: "BGPPeer", Name: "tor"}, `"BGPPeer tor"`},
		{MAC{0, 0x53, 0, 0, 0, 1}, `"00:53:00:00:00:01"`},
	} {
		if got, err := json.Marshal(tt.v); err != nil || string(got) != tt.want {
			t.Errorf("%#v: %s, %v; want %s", tt.v, got, err, tt.want)
		}
	}
}
