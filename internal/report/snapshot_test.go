package report

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestUpdateStaysOpen: a Service whose condition is left out for at is open, by whoever asks, and not any more once it
// is there.
func TestUpdateStaysOpen(t *testing.T) {
	at := time.Now()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", CreationTimestamp: metav1.Time{Time: at}}}
	v := plan.Verdict{
		Service: lb.Key{Name: "s"}, L2: plan.Outcome{Selected: true, Writer: true, Reason: lb.NoServingEndpoint},
	}
	for after, open := range map[time.Duration]bool{endpointsTime / 2: true, endpointsTime: false} {
		l := snapshot{open: map[lb.Key]bool{}}
		u, wait := l.update("a", &Standing{}, s, v, at.Add(after))
		if l.open[v.Service] != open || wait > 0 != open || len(u.Conditions) == 0 != open {
			t.Errorf("after %v: %d conditions, again in %v, open %v", after, len(u.Conditions), wait, l.open)
		}
	}
	v.L2.Writer = false
	l := snapshot{open: map[lb.Key]bool{}}
	if u, wait := l.update("a", &Standing{}, s, v, at); len(u.Conditions)+len(l.open) > 0 || wait != 0 {
		t.Errorf("not the writer: %v, open %v", u.Conditions, l.open)
	}
}

// TestSnapshot: a Service is looked at again if its verdict, its object or a state of its addresses changed, appeared
// or went, or if it is open; all are if sessions or problems changed, and each is once in resyncAge.
func TestSnapshot(t *testing.T) {
	at := func(texts ...string) (out []lb.AddressState) {
		for _, text := range texts {
			a, phase, _ := strings.Cut(text, " ")
			out = append(out, lb.AddressState{Address: netip.MustParseAddr(a), Phase: phase})
		}
		return out
	}
	old := snapshot{open: map[lb.Key]bool{}, states: at("192.0.2.1 x", "192.0.2.2 x", "192.0.2.4 x", "192.0.2.5 x")}
	for i := range 9 {
		key := lb.Key{Name: fmt.Sprint("s", i)}
		old.verdicts = old.verdicts.Put(key, &plan.Verdict{
			L2: plan.Outcome{Announcers: []plan.Announcer{{Address: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})}}},
		})
		old.services = old.services.Put(key, &corev1.Service{})
	}
	old.open[lb.Key{Name: "s6"}] = true
	next := func(change func(*snapshot)) string {
		next := old
		change(&next)
		var names []string
		for _, k := range next.due(old) {
			names = append(names, k.Name)
		}
		return strings.Join(names, " ")
	}
	for name, tt := range map[string]struct {
		change func(*snapshot)
		want   string
	}{
		"nothing": {func(*snapshot) {}, "s6"},
		"states": {func(l *snapshot) {
			l.states = at("192.0.2.1 x", "192.0.2.2 y", "192.0.2.3 x", "192.0.2.4 x")
		}, "s2 s3 s5 s6"},
		"verdict": {func(l *snapshot) { l.verdicts = l.verdicts.Put(lb.Key{Name: "s7"}, &plan.Verdict{}) }, "s6 s7"},
		"object": {func(l *snapshot) {
			l.services = l.services.Put(lb.Key{Name: "s8"}, &corev1.Service{})
		}, "s6 s8"},
		"session": {func(l *snapshot) { l.sessions = []lb.Session{{}} }, "s0 s1 s2 s3 s4 s5 s6 s7 s8"},
		"problem": {func(l *snapshot) { l.problems = []lb.Problem{{}} }, "s0 s1 s2 s3 s4 s5 s6 s7 s8"},
		"time":    {func(l *snapshot) { l.turn = old.turn + resyncAge }, "s0 s1 s2 s3 s4 s5 s6 s7 s8"},
	} {
		if got := next(tt.change); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	turns := map[lb.Key]int{}
	delete(old.open, lb.Key{Name: "s6"})
	for last, end := old, old.turn+resyncAge; last.turn < end; {
		next := last
		next.turn = last.turn + turnTime
		for _, k := range next.due(last) {
			turns[k]++
		}
		last = next
	}
	if len(turns) != 9 || slices.Max(slices.Collect(maps.Values(turns))) != 1 {
		t.Errorf("within %v each has one turn: %v", resyncAge, turns)
	}
	old.waits = map[lb.Key]bool{{Name: "s1"}: true, {Name: "s2"}: false}
	if got := fmt.Sprint(old.pending()); got != "[{{ s1} true} {{ s2} false}]" {
		t.Errorf("pending are %s", got)
	}
	// Who adds a field adds it to sameState.
	if n := reflect.TypeFor[lb.AddressState]().NumField(); n != 7 {
		t.Errorf("an address's state has %d fields", n)
	}
}
