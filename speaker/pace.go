package main

import (
	"errors"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// slowPace is the time between two reports of one speaker in the slow pace, for each living speaker: all
	// together write at most two a second.
	slowPace = 500 * time.Millisecond
	// fewReports is how many reports are written at once although addresses are still being announced.
	fewReports = 10
	// slowWait is the time between two runs in the slow pace, burstWait in a burst: what is to be written of thousands
	// of Services takes longer to find than the few reports take that may be written.
	slowWait, burstWait = time.Second, 5 * time.Second
	// yieldTime is how long a run waits for announcements at most: comparing what to write for a thousand Services
	// takes a core for longer than they do, and a link that takes no frame must not stop reports.
	yieldTime = 200 * time.Millisecond
)

// pace slows reports down during a burst, and many reports also while addresses are still being announced: addresses
// come first, since one write costs the API server and its watchers a hundred times what a frame costs.
type pace struct {
	// burst reports whether many Services are getting addresses, announcing whether announcements are still being sent.
	burst, announcing func() bool
	slow              *rate.Limiter
	// yielding is when announcements began that are still being sent; zero if none are.
	yielding time.Time
	// after is when a burst lets the next run begin.
	after time.Time
}

func newPace(burst, announcing func() bool) pace {
	return pace{burst: burst, announcing: announcing, slow: rate.NewLimiter(0, 1)}
}

// yields returns how long a run is to wait because of a burst, or because announcements are being sent; 0 if it may
// begin.
func (p *pace) yields(now time.Time) time.Duration {
	switch {
	case p.burst() && now.Before(p.after):
		return min(slowWait, p.after.Sub(now)) // the burst may end sooner
	case !p.announcing():
		p.yielding = time.Time{}
		return 0
	case p.yielding.IsZero():
		p.yielding = now
	}
	return max(0, min(yieldTime/10, p.yielding.Add(yieldTime).Sub(now)))
}

// report is a Service to be written, of which only the name is kept: thousands that wait would be as large as all else.
type report struct {
	service lb.Key
	// corrects: the Service has a condition that is wrong.
	corrects bool
}

func corrects(u k8s.ServiceUpdate) bool {
	have := u.Service.Status.Conditions
	isThere := func(kind string) bool { return meta.FindStatusCondition(have, kind) != nil }
	if slices.ContainsFunc(u.RemoveConditions, isThere) {
		return true
	}
	changed := k8s.Changed(have, u.Conditions, 0, metav1.Time{})
	return slices.ContainsFunc(changed, func(c metav1.Condition) bool { return isThere(c.Type) })
}

// each writes reports, corrections first; in the slow pace only as many as there is room for with so many speakers. A
// report that waits, because the API server refused it, takes no room. It returns when to call it again: 0 means not
// before something changes.
func (p *pace) each(reports []report, speakers int, write func(report) error) (again time.Duration, err error) {
	first := slices.DeleteFunc(slices.Clone(reports), func(r report) bool { return !r.corrects })
	rest := slices.DeleteFunc(slices.Clone(reports), func(r report) bool { return r.corrects })
	period, room := slowPace*time.Duration(max(1, speakers)), 1
	if p.burst() {
		room = max(room, int(burstWait/period))
	}
	p.slow.SetLimit(rate.Every(period))
	p.slow.SetBurst(room)
	var errs []error
	for i, one := range slices.Concat(first, rest) {
		slow := p.burst() || len(reports)-i > fewReports && p.announcing()
		if slow && p.slow.Tokens() < 1 {
			if again == 0 && i >= len(first) {
				p.after = time.Now().Add(burstWait)
			}
			again = daemon.Sooner(again, slowWait)
			break
		}
		err := write(one)
		if wait := k8s.Wait(err); wait > 0 {
			again = daemon.Sooner(again, wait)
			continue
		}
		p.slow.Allow()
		errs = append(errs, err)
	}
	return again, errors.Join(errs...)
}
