package report

import (
	"errors"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
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

// report is an update of one Service.
type report struct {
	k8s.ServiceUpdate
	priority priority
}

// priority orders reports: the lowest is written first.
type priority int

const (
	// correction: the Service has a condition that is wrong.
	correction priority = iota
	// success: the Service is announced, and has no condition about that.
	success
	// failure: the Service is not announced, and has no condition about that.
	failure
	// retry: the API server refused the report last time. Reports that it refuses each time must not use up the
	// room of all others.
	retry
)

func priorityOf(u k8s.ServiceUpdate) priority {
	out := failure
	if len(u.RemoveConditions) > 0 {
		out = correction
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
	// refused are the Services whose last report the API server refused.
	refused map[lb.Key]bool
}

// each writes reports by priority; in the slow pace only as many as there is room for with so many speakers. It
// returns when to call it again: 0 means not before something changes.
func (p *pace) each(reports []report, speakers int, write func(k8s.ServiceUpdate) error) (again time.Duration, err error) {
	p.prioritize(reports)
	p.refused = map[lb.Key]bool{}
	var errs []error
	room, slow := 0, false
	for i, one := range reports {
		if !slow && (p.burst() || len(reports)-i > fewReports && p.announcing()) {
			slow, room = true, p.room(time.Now(), speakers)
		}
		if slow && room == 0 {
			again = slowWait
			p.remember(reports[i:])
			break
		}
		room--
		err := write(one.ServiceUpdate)
		if wait := k8s.Wait(err); wait > 0 && (again == 0 || wait < again) {
			again = wait
		} else if wait == 0 && err != nil {
			errs = append(errs, err)
		}
		if err != nil && !k8s.Overtaken(err) {
			one.priority = retry
			p.remember([]report{one})
		}
	}
	return again, errors.Join(errs...)
}

func (p *pace) prioritize(reports []report) {
	for i, one := range reports {
		if p.refused[keyOf(one.Service)] {
			reports[i].priority = retry
		}
	}
	slices.SortStableFunc(reports, func(a, b report) int { return int(a.priority - b.priority) })
}

// remember keeps which of the reports were refused.
func (p *pace) remember(reports []report) {
	for _, one := range reports {
		if one.priority == retry {
			p.refused[keyOf(one.Service)] = true
		}
	}
}

// room returns how many reports may be written at this time in the slow pace.
func (p *pace) room(now time.Time, speakers int) int {
	interval := slowPace * time.Duration(max(1, speakers))
	passed := min(now.Sub(p.at), max(slowWait, interval))
	p.at = now.Add(-passed % interval)
	return int(passed / interval)
}
