package report

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// writeOf returns a write of a Service, which may have such a condition already. The Service gone is to have none.
func writeOf(name string, exists bool) write {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if exists {
		s.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionAnnouncedL2, Status: metav1.ConditionUnknown}}
	}
	u := k8s.ServiceUpdate{
		Service: s, Conditions: []metav1.Condition{{Type: v1beta1.ConditionAnnouncedL2, Status: metav1.ConditionTrue}},
	}
	if name == "gone" {
		u.Conditions, u.RemoveConditions = nil, []string{v1beta1.ConditionAnnouncedL2}
	}
	return write{lb.Key{Name: name}, corrects(u)}
}

func (p *pace) overtakes(err error) (names []string, again time.Duration, failed error) {
	again, failed = p.each([]write{writeOf("new", false), writeOf("wrong", true), writeOf("gone", true)},
		4, func(u write) error {
			if names = append(names, u.service.Name); u.service.Name == "wrong" {
				return err
			}
			return nil
		})
	return names, again, failed
}

// TestCorrectionsFirst: conditions that are wrong are written first. A write that another one overtook is no failure,
// and is repeated soon.
func TestCorrectionsFirst(t *testing.T) {
	p := newPace(func() bool { return false }, func() bool { return false })
	names, again, err := p.overtakes(apierrors.NewConflict(schema.GroupResource{}, "wrong", nil))
	if diff := cmp.Diff([]string{"wrong", "gone", "new"}, names); diff != "" || again <= 0 || again >= slowWait ||
		err != nil {
		t.Errorf("again after %v, error %v, order (-want +got):\n%s", again, err, diff)
	}
	if _, again, err := p.overtakes(errors.New("no")); again != 0 || err == nil {
		t.Errorf("a failure: again after %v, error %v", again, err)
	}
}

// TestPace: during a burst, or with many reports while announcements are being sent, all speakers together write two
// reports a second or fewer, and no more if they are kicked more often. A report that waits because it was refused
// takes no room. Afterwards the rest is written.
func TestPace(t *testing.T) {
	for _, tt := range []struct {
		name                     string
		burst, announcing        bool
		reports, speakers        int
		early, minLater, maxLate int
	}{
		{"burst, one speaker", true, false, 300, 1, 1, 19, 22},
		{"burst, four speakers", true, false, 300, 4, 1, 5, 6},
		{"burst, a thousand speakers", true, false, 300, 1000, 1, 1, 1},
		{"many are announced", false, true, 300, 4, 1, 5, 6},
		{"few are announced", false, true, fewWrites, 4, fewWrites, fewWrites, fewWrites},
	} {
		synctest.Test(t, func(t *testing.T) {
			slow := true
			p := newPace(func() bool { return slow && tt.burst }, func() bool { return slow && tt.announcing })
			reports := []write{writeOf("denied", true)}
			for i := range tt.reports {
				reports = append(reports, writeOf(fmt.Sprint(i), false))
			}
			written := 0
			look := func() time.Duration {
				again, err := p.each(slices.Clone(reports), tt.speakers, func(u write) error {
					if u.service.Name == "denied" {
						return apierrors.NewConflict(schema.GroupResource{}, "denied", nil) // or any error that says to wait
					}
					written++
					reports = slices.DeleteFunc(reports, func(w write) bool { return w.service.Name == u.service.Name })
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				return again
			}
			if look(); written != tt.early {
				t.Errorf("%s: %d reports were written at once", tt.name, written)
			}
			for range 20 {
				time.Sleep(slowWait / 2)
				look()
			}
			if written < tt.minLater || written > tt.maxLate {
				t.Errorf("%s: one speaker wrote %d reports in 10 s", tt.name, written)
			}
			slow = false
			if look(); len(reports) != 1 {
				t.Errorf("%s: %d reports are left afterwards", tt.name, len(reports))
			}
		})
	}
}

// TestDelay: a run waits while announcements are being sent, but not for a link that takes none, and the next ones
// count from their start. In a burst it waits for longer once no more reports may be written, but not beyond the burst.
func TestDelay(t *testing.T) {
	announcing, at := true, time.Now()
	p := newPace(func() bool { return false }, func() bool { return announcing })
	for range 2 {
		waited := time.Duration(0)
		for wait := p.delay(at); wait > 0; wait = p.delay(at) {
			at, waited = at.Add(wait), waited+wait
		}
		if waited != yieldTime {
			t.Errorf("waited for %v, want %v", waited, yieldTime)
		}
		announcing = false
		if wait := p.delay(at); wait != 0 {
			t.Errorf("waits for %v though nothing is announced", wait)
		}
		announcing = true
	}
	synctest.Test(t, func(t *testing.T) {
		p, n := newPace(func() bool { return true }, func() bool { return false }), 0
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(slowWait / 2) {
			if p.delay(time.Now()) > 0 {
				continue
			}
			_, err := p.each(slices.Repeat([]write{writeOf("a", false)}, 100), 3, func(write) error { n++; return nil })
			if err != nil {
				t.Fatal(err)
			}
		}
		if n < 30 || n > 43 {
			t.Errorf("one of three speakers wrote %d reports in a minute of a burst", n)
		}
	})
	burst := true
	p = newPace(func() bool { return burst }, func() bool { return false })
	if wait := p.delay(time.Now()); wait != 0 {
		t.Errorf("the first run of a burst waits for %v", wait)
	}
	_, err := p.each([]write{writeOf("a", false), writeOf("b", false)}, 2, func(write) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if wait, last := p.delay(time.Now()), p.delay(time.Now().Add(burstWait)); wait != slowWait || last != 0 {
		t.Errorf("with a report left in a burst it waits for %v, and after %v for %v", wait, burstWait, last)
	}
	if burst = false; p.delay(time.Now()) != 0 {
		t.Error("it waits though the burst is over")
	}
}
