package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const theirMAC, otherMAC = "02:00:00:00:00:09", "02:00:00:00:00:0a"

// says returns the report of a node's speaker at a second, as pairs of address and MAC.
func says(node string, second int, pairs ...string) *v1beta1.SpeakerState {
	s := &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{Name: node}}
	s.Status.Observed = new(v1beta1.NewMicroTime(time.Unix(int64(second), 0)))
	for i := 0; i < len(pairs); i += 2 {
		s.Status.Conflicts = append(s.Status.Conflicts, v1beta1.AddressConflict{Address: pairs[i], MAC: pairs[i+1]})
	}
	return s
}

// TestConflictsRead: which reports count.
func TestConflictsRead(t *testing.T) {
	for _, tt := range []struct {
		name   string
		states []*v1beta1.SpeakerState
		gone   string
		want   string
	}{
		{"no report", []*v1beta1.SpeakerState{says("w1", 1)}, "", "map[]"},
		{"both families", []*v1beta1.SpeakerState{says("w1", 1, "192.0.2.1", theirMAC, "2001:db8::1", otherMAC)}, "",
			"map[192.0.2.1:{02:00:00:00:00:09 w1} 2001:db8::1:{02:00:00:00:00:0a w1}]"},
		{
			"two of one address",
			[]*v1beta1.SpeakerState{says("w2", 1, "192.0.2.1", theirMAC), says("w1", 1, "192.0.2.1", otherMAC),
				says("w3", 1, "192.0.2.1", theirMAC)}, "", "map[192.0.2.1:{02:00:00:00:00:0a w1}]",
		},
		{"a node that is given up", []*v1beta1.SpeakerState{says("w1", 1, "192.0.2.1", theirMAC)}, "w1", "map[]"},
		{
			"what cannot be read",
			[]*v1beta1.SpeakerState{says("w1", 1, "192.0.2", theirMAC, "192.0.2.1", "not a MAC", "192.0.2.2", theirMAC)},
			"", "map[192.0.2.2:{02:00:00:00:00:09 w1}]",
		},
		{
			"a speaker that has never written",
			[]*v1beta1.SpeakerState{{ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Status: v1beta1.SpeakerStateStatus{
				Conflicts: []v1beta1.AddressConflict{{Address: "192.0.2.1", MAC: theirMAC}},
			}}}, "", "map[]",
		},
	} {
		r := reportTimes{}.update(time.Now(), time.Time{}, tt.states)
		if got := fmt.Sprint(r.foreignClaims(time.Now(), tt.states, map[string]bool{tt.gone: true})); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestConflictsOfGoneSpeaker: the last report of a speaker counts for a while by the
// monotonic clock, and each new one for as long.
func TestConflictsOfGoneSpeaker(t *testing.T) {
	start := time.Now()
	for _, by := range []time.Duration{0, time.Hour, -time.Hour} {
		var r reportTimes
		for i, step := range []struct {
			after time.Duration
			wrote int
			want  int
		}{
			{0, 1, 1}, {20 * time.Minute, 1, 1}, {24 * time.Minute, 2, 1}, {48 * time.Minute, 2, 1},
			{49 * time.Minute, 2, 0}, {50 * time.Minute, 3, 1},
		} {
			clock := nstest.SetClock(start.Add(step.after), time.Duration(i)*by)
			states := []*v1beta1.SpeakerState{says("w1", step.wrote, "192.0.2.1", theirMAC)}
			r = r.update(clock, time.Time{}, states)
			if got := r.foreignClaims(clock, states, nil); len(got) != step.want {
				t.Errorf("clock set by %v: after %v %v", by, step.after, got)
			}
		}
	}
}

// TestFree: a pool's condition lists the claims of addresses that lie in it or that it
// retains, no more than fit into a sentence.
func TestFree(t *testing.T) {
	address := netip.MustParseAddr
	ranges := []lb.Range{
		{From: address("192.0.2.0"), To: address("192.0.2.255")},
		{From: address("2001:db8::"), To: address("2001:db8::ff")},
	}
	all := func(addresses ...string) map[netip.Addr]foreignClaim {
		out := map[netip.Addr]foreignClaim{}
		for _, a := range addresses {
			out[address(a)] = foreignClaim{theirMAC, "w1"}
		}
		return out
	}
	var many []string
	for i := range lb.Few + 3 {
		many = append(many, fmt.Sprintf("192.0.2.%d", i+1))
	}
	free1 := ". " + lb.AddressConflict.Remedy()
	for _, tt := range []struct {
		name     string
		retained string
		claimed  []string
		want     string
	}{
		{"none", "", nil, ""},
		{"another pool's", "", []string{"198.51.100.1"}, ""},
		{"its own", "", []string{"198.51.100.1", "2001:db8::1", "192.0.2.1"},
			"192.0.2.1 is claimed by 02:00:00:00:00:09 (seen by node w1), 2001:db8::1 is claimed by " +
				"02:00:00:00:00:09 (seen by node w1)" + free1},
		{
			"one it retains",
			"198.51.100.1", []string{"198.51.100.1"},
			"198.51.100.1 is claimed by 02:00:00:00:00:09 (seen by node w1)" + free1,
		},
	} {
		var u ipam.Usage
		if tt.retained != "" {
			u.Retained = []lb.Retention{{Address: address(tt.retained)}}
		}
		c, stands := addressesFree(ranges, u, all(tt.claimed...))
		if c.Type != v1beta1.ConditionAddressesFree || stands != (tt.want != "") {
			t.Errorf("%s: %s stands: %v", tt.name, c.Type, stands)
		}
		if diff := cmp.Diff(tt.want, c.Message); stands && diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	c, _ := addressesFree(ranges, ipam.Usage{}, all(many...))
	if want := "192.0.2.5 is claimed by 02:00:00:00:00:09 (seen by node w1) and 3 more" + free1; len(c.Message) > 1024 ||
		c.Message[len(c.Message)-len(want):] != want {
		t.Errorf("of many: %s", c.Message)
	}
}

// TestConflictsNotReadYet: a new leader leaves a pool's condition AddressesFree alone
// until it has read the speakers' reports.
func TestConflictsNotReadYet(t *testing.T) {
	pool := lan()
	pool.Status.Conditions = []metav1.Condition{{
		Type: v1beta1.ConditionAddressesFree, Status: metav1.ConditionFalse, Reason: string(lb.AddressConflict),
		LastTransitionTime: metav1.Now(),
	}}
	server := newServer(t, pool)
	s := newTestSyncer(t, server)
	s.speakers = speakerView{}
	expect := func(stands bool, when string) {
		t.Helper()
		syncOnce(t, s)
		var pool v1beta1.IPAddressPool
		server.get(t, poolsPath+"/lan", &pool)
		if got := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionAddressesFree) != nil; got != stands {
			t.Errorf("%s: the condition stands: %v", when, got)
		}
		if !meta.IsStatusConditionTrue(pool.Status.Conditions, v1beta1.ConditionValid) {
			t.Errorf("%s: the pool was not written", when)
		}
	}
	expect(true, "before the speakers' reports were read")
	s.requestObserve()
	expect(false, "no machine claims an address")
}

// TestFloatingIPHistory: the holder, since when, and the last three holders.
func TestFloatingIPHistory(t *testing.T) {
	at := func(minute int) metav1.Time { return metav1.NewTime(time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)) }
	until := func(minute int) *v1beta1.Time { return new(v1beta1.NewTime(at(minute).Time)) }
	object := &v1beta1.FloatingIP{}
	step := func(minute int, reason lb.Reason, service, uid string) v1beta1.FloatingIPStatus {
		owned := &ipam.Floating{Assignment: ipam.Assignment{
			Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Reason: reason,
		}}
		if service != "" {
			owned.BoundTo, owned.BoundUID = lb.Key{Namespace: "ns", Name: service}, uid
		}
		object.Status = floatingWrite{object, owned}.status(at(minute))
		return object.Status
	}
	if s := step(0, lb.Available, "", ""); s.Phase != v1beta1.FloatingIPAvailable || s.BoundTo != nil {
		t.Errorf("free: %+v", s)
	}
	step(1, lb.Bound, "a", "1")
	if s := step(2, lb.Bound, "a", "1"); s.Phase != v1beta1.FloatingIPBound || !s.BoundSince.Equal(&until(1).Time) {
		t.Errorf("bound since %v, want minute 1", s.BoundSince)
	}
	step(3, lb.Bound, "b", "2")
	step(4, lb.Bound, "b", "3") // the Service was deleted and created
	step(5, lb.Available, "", "")
	step(6, lb.Bound, "c", "4")
	got := step(7, lb.Available, "", "")
	want := []v1beta1.Holder{
		{Name: "c", UID: "4", Until: until(7)},
		{Name: "b", UID: "3", Until: until(5)},
		{Name: "b", UID: "2", Until: until(4)},
	}
	if diff := cmp.Diff(want, got.RecentHolders); diff != "" || got.BoundSince != nil {
		t.Errorf("recent holders (-want +got):\n%s", diff)
	}
	s := step(8, lb.PoolExhausted, "", "")
	if s.Phase != v1beta1.FloatingIPPending || s.Conditions[0].Status != metav1.ConditionFalse {
		t.Errorf("pending: %+v", s)
	}
}

// TestKeepDenied: where the API server denies the FloatingIP of keep-floatingip, say by a ResourceQuota, the Service
// gets its address and says in the same write that the address will not be kept. That is no error of a run, and is not
// asked again at once.
func TestKeepDenied(t *testing.T) {
	sv := loadBalancer("web")
	metav1.SetMetaDataAnnotation(&sv.ObjectMeta, "loadbalancer.openstack.org/keep-floatingip", "true")
	server := newServer(t, lan(), sv)
	s := newTestSyncer(t, server)
	told := func() string {
		got := server.service(t, "web")
		c := meta.FindStatusCondition(got.Status.Conditions, v1beta1.ConditionAnnotationsHonoured)
		differs := len(got.Status.LoadBalancer.Ingress) != 1 || c == nil || c.Status != metav1.ConditionFalse ||
			c.Reason != string(lb.NotKept)
		if differs {
			t.Fatalf("status has %v, condition %+v", got.Status.LoadBalancer.Ingress, c)
		}
		return c.Message
	}
	syncOnce(t, s)
	first := told()
	if !strings.HasPrefix(first, "the address will not be kept: ") {
		t.Errorf("message is %q", first)
	}
	server.landed()
	syncOnce(t, s)
	if hasPatched(server.landed(), servicesPath+"/web") || told() != first {
		t.Errorf("the second run wrote again: %q", told())
	}
}
