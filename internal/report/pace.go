package report

import (
	"errors"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/k8s"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// slowPace is the time between two reports of one speaker in the slow pace, for each living speaker: all
	// together write at most two a second.
	slowPace = 500 * time.Millisecond
	// fewReports is how many reports are written at once although addresses are still being announced.
	fewReports = 10
	// slowWait is the time between two runs in the slow pace.
	slowWait = time.Second
)

// The order in which reports are written.
const (
	// correction: the Service has a condition that is wrong.
	correction = iota
	// success: the Service is announced, and has no condition about that.
	success
	// failure: the Service is not announced, and has no condition about that.
	failure
)

func priorityOf(u k8s.ServiceUpdate) int {
	out := failure
	for _, kind := range u.RemoveConditions {
		if meta.FindStatusCondition(u.Service.Status.Conditions, kind) != nil {
			out = correction
		}
	}
	for _, c := range k8s.Changed(u.Service.Status.Conditions, u.Conditions, 0, metav1.Time{}) {
		switch {
		case meta.FindStatusCondition(u.Service.Status.Conditions, c.Type) != nil:
			out = correction
		case c.Status == metav1.ConditionTrue:
			out = min(out, success)
		}
	}
	return out
}

// pace slows reports down during a burst, and many reports also while addresses are still being announced: addresses
// come first, since one write costs the API server and its watchers a hundred times what a frame costs.
type pace struct {
	// burst reports whether many Services are getting addresses.
	burst func() bool
	// announcing reports whether announcements are still being sent.
	announcing func() bool
	// at is when the last report was written in the slow pace.
	at time.Time
}

// each writes reports by priority; in the slow pace only as many as there is room for with so many speakers. A report that
// waits, because the API server refused it, takes no room. It returns when to call it again: 0 means not before something changes.
func (p *pace) each(reports []k8s.ServiceUpdate, speakers int, write func(k8s.ServiceUpdate) error) (again time.Duration, err error) {
	var byPriority [failure + 1][]k8s.ServiceUpdate
	for _, one := range reports {
		priority := priorityOf(one)
		byPriority[priority] = append(byPriority[priority], one)
	}
	var errs []error
	room, slow := 0, false
	for i, one := range slices.Concat(byPriority[:]...) {
		if !slow && (p.burst() || len(reports)-i > fewReports && p.announcing()) {
			slow, room = true, p.room(time.Now(), speakers)
		}
		if slow && room == 0 {
			again = slowWait
			break
		}
		err := write(one)
		if wait := k8s.Wait(err); wait > 0 {
			if again == 0 || wait < again {
				again = wait
			}
			continue
		}
		room--
		errs = append(errs, err)
	}
	return again, errors.Join(errs...)
}

// room returns how many reports may be written at this time in the slow pace.
func (p *pace) room(now time.Time, speakers int) int {
	interval := slowPace * time.Duration(max(1, speakers))
	passed := min(now.Sub(p.at), max(slowWait, interval))
	p.at = now.Add(-passed % interval)
	return int(passed / interval)
}
