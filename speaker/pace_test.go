package main

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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// reportOf returns a report on a Service, which may have such a condition already.
func reportOf(name string, exists bool) k8s.ServiceUpdate {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if exists {
		s.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionAnnouncedL2, Status: metav1.ConditionUnknown}}
	}
	return k8s.ServiceUpdate{Service: s, Conditions: []metav1.Condition{{Type: v1beta1.ConditionAnnouncedL2, Status: metav1.ConditionTrue}}}
}

func (p *pace) overtakes(err error) (names []string, again time.Duration, failed error) {
	gone := reportOf("gone", true)
	gone.Conditions, gone.RemoveConditions = nil, []string{v1beta1.ConditionAnnouncedL2}
	again, failed = p.each([]k8s.ServiceUpdate{reportOf("new", false), reportOf("wrong", true), gone}, 4, func(u k8s.ServiceUpdate) error {
		if names = append(names, u.Service.Name); u.Service.Name == "wrong" {
			return err
		}
		return nil
	})
	return names, again, failed
}

// TestCorrectionsFirst: conditions that are wrong are written first. A write that another one overtook is no failure, and is repeated soon.
func TestCorrectionsFirst(t *testing.T) {
	p := newPace(func() bool { return false }, func() bool { return false })
	names, again, err := p.overtakes(apierrors.NewConflict(schema.GroupResource{}, "wrong", nil))
	if diff := cmp.Diff([]string{"wrong", "gone", "new"}, names); diff != "" || again <= 0 || again >= slowWait || err != nil {
		t.Errorf("again after %v, error %v, order (-want +got):\n%s", again, err, diff)
	}
	if _, again, err := p.overtakes(errors.New("no")); again != 0 || err == nil {
		t.Errorf("a failure: again after %v, error %v", again, err)
	}
}

// TestPace: during a burst, or with many reports while announcements are being sent, all speakers together write two reports a second or
// fewer, and no more if they are kicked more often. A report that waits because it was refused takes no room. Afterwards the rest is written.
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
		{"few are announced", false, true, fewReports, 4, fewReports, fewReports, fewReports},
	} {
		synctest.Test(t, func(t *testing.T) {
			slow := true
			p := newPace(func() bool { return slow && tt.burst }, func() bool { return slow && tt.announcing })
			reports := []k8s.ServiceUpdate{reportOf("denied", true)}
			for i := range tt.reports {
				reports = append(reports, reportOf(fmt.Sprint(i), false))
			}
			written := 0
			look := func() time.Duration {
				again, err := p.each(slices.Clone(reports), tt.speakers, func(u k8s.ServiceUpdate) error {
					if u.Service.Name == "denied" {
						return apierrors.NewConflict(schema.GroupResource{}, "denied", nil) // or any error that says to wait
					}
					written++
					reports = slices.DeleteFunc(reports, func(r k8s.ServiceUpdate) bool { return r.Service.Name == u.Service.Name })
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

// TestYields: a run waits while announcements are being sent, but not for a link that takes none, and the next ones count from their start.
func TestYields(t *testing.T) {
	announcing, at := true, time.Now()
	p := newPace(func() bool { return false }, func() bool { return announcing })
	for range 2 {
		waited := time.Duration(0)
		for wait := p.yields(at); wait > 0; wait = p.yields(at) {
			at, waited = at.Add(wait), waited+wait
		}
		if waited != yieldTime {
			t.Errorf("waited for %v, want %v", waited, yieldTime)
		}
		announcing = false
		if wait := p.yields(at); wait != 0 {
			t.Errorf("waits for %v though nothing is announced", wait)
		}
		announcing = true
	}
}
