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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// reportOf returns a report on a Service that is announced or not, and that has a condition already or not.
func reportOf(name string, exists bool, status metav1.ConditionStatus) k8s.ServiceUpdate {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if exists {
		s.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionAnnouncedL2, Status: metav1.ConditionUnknown}}
	}
	return k8s.ServiceUpdate{Service: s, Conditions: []metav1.Condition{{Type: v1beta1.ConditionAnnouncedL2, Status: status}}}
}

func never() bool { return false }

// TestPriority: corrections come first, then success, then failure.
func TestPriority(t *testing.T) {
	var p pace
	p.burst = never
	p.announcing = never
	gone := reportOf("gone", true, metav1.ConditionUnknown)
	gone.RemoveConditions = []string{v1beta1.ConditionAnnouncedL2}
	var written []string
	again, err := p.each([]k8s.ServiceUpdate{
		reportOf("unserved-1", false, metav1.ConditionFalse),
		reportOf("served-1", false, metav1.ConditionTrue),
		reportOf("lost", true, metav1.ConditionFalse),
		reportOf("unserved-2", false, metav1.ConditionFalse),
		reportOf("served-2", false, metav1.ConditionTrue),
		gone,
	}, 4, func(u k8s.ServiceUpdate) error {
		written = append(written, u.Service.Name)
		switch u.Service.Name {
		case "lost":
			return fmt.Errorf("write: %w", apierrors.NewConflict(schema.GroupResource{Resource: "services"}, "lost", nil))
		case "served-1":
			return errors.New("no")
		}
		return nil
	})
	if diff := cmp.Diff([]string{"lost", "gone", "served-1", "served-2", "unserved-1", "unserved-2"}, written); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if again <= 0 || again >= slowWait || err == nil || err.Error() != "no" {
		t.Errorf("again after %v, error %v", again, err)
	}
}

// TestBurst: during a burst all speakers together write two reports a second, corrections first, and no more if they
// are kicked more often. After it they write the rest.
func TestBurst(t *testing.T) {
	for _, tt := range []struct{ speakers, least, most int }{{1, 19, 22}, {4, 5, 6}, {1000, 1, 1}} {
		synctest.Test(t, func(t *testing.T) {
			burst := true
			p := pace{burst: func() bool { return burst }, announcing: never}
			var reports []k8s.ServiceUpdate
			for i := range 300 {
				reports = append(reports, reportOf(fmt.Sprint(i), i == 299, metav1.ConditionFalse))
			}
			var written []string
			look := func() time.Duration {
				again, err := p.each(slices.Clone(reports), tt.speakers, func(u k8s.ServiceUpdate) error {
					written = append(written, u.Service.Name)
					reports = slices.DeleteFunc(reports, func(r k8s.ServiceUpdate) bool { return r.Service.Name == u.Service.Name })
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				return again
			}
			for range 20 {
				if again := look(); again != slowWait {
					t.Fatalf("%d speakers: again after %v", tt.speakers, again)
				}
				time.Sleep(slowWait / 2)
			}
			if n := len(written); n < tt.least || n > tt.most || written[0] != "299" {
				t.Errorf("one of %d speakers wrote %d reports in 10 s, first %s", tt.speakers, n, written[0])
			}
			burst = false
			if again := look(); again != 0 || len(reports) > 0 {
				t.Errorf("after the burst %d reports are left, again after %v", len(reports), again)
			}
		})
	}
}

// TestRefused: a report that the API server refuses each time waits ever longer, and takes no room of others while it does.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pace{burst: func() bool { return true }, announcing: never}
		var written []string
		for i := range 6 {
			reports := []k8s.ServiceUpdate{reportOf("denied", true, metav1.ConditionFalse), reportOf(fmt.Sprint(i), false, metav1.ConditionFalse),
				reportOf("later", false, metav1.ConditionFalse)}
			_, _ = p.each(reports, 2, func(u k8s.ServiceUpdate) error {
				switch {
				case u.Service.Name != "denied":
					written = append(written, u.Service.Name)
					return nil
				case i == 0:
					return errors.New("admission webhook denied the request")
				}
				return apierrors.NewConflict(schema.GroupResource{}, "denied", nil) // or any error that says to wait
			})
			time.Sleep(slowWait)
		}
		if diff := cmp.Diff([]string{"1", "2", "3", "4", "5"}, written); diff != "" {
			t.Errorf("others (-want +got):\n%s", diff)
		}
	})
}

// TestAnnouncing: while announcements are being sent, few reports are written at once, and many in the slow pace.
func TestAnnouncing(t *testing.T) {
	for _, tt := range []struct{ reports, early int }{{fewReports, fewReports}, {300, 1}} {
		synctest.Test(t, func(t *testing.T) {
			announcing := true
			p := pace{burst: never, announcing: func() bool { return announcing }}
			var reports []k8s.ServiceUpdate
			for i := range tt.reports {
				reports = append(reports, reportOf(fmt.Sprint(i), true, metav1.ConditionTrue))
			}
			look := func() (written int, again time.Duration) {
				again, err := p.each(reports, 4, func(k8s.ServiceUpdate) error { written++; return nil })
				if err != nil {
					t.Fatal(err)
				}
				return written, again
			}
			early, again := look()
			if early != tt.early || (again > 0) != (tt.early < tt.reports) {
				t.Errorf("%d of %d reports were written early, again after %v", early, tt.reports, again)
			}
			announcing = false
			if late, again := look(); late != tt.reports || again != 0 {
				t.Errorf("%d of %d reports were written then, again after %v", late, tt.reports, again)
			}
		})
	}
}
