package report

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
	// slowPace is the time between two writes of one speaker in the slow pace, for each living speaker: all speakers
	// together write at most two Services a second.
	slowPace = 500 * time.Millisecond
	// fewWrites is how many Services are written at once although addresses are still being announced.
	fewWrites = 10
	// slowWait is the time between two runs in the slow pace, and burstWait in a burst: to compare thousands of Services
	// takes longer than the few writes that the pace allows.
	slowWait, burstWait = time.Second, 5 * time.Second
	// yieldTime is the most time that a run waits for announcements. To compare a thousand Services takes a core longer
	// than to announce them, and a link that takes no frame must not stop all writes.
	yieldTime = 200 * time.Millisecond
)

// pace slows writes down during a burst, and slows many writes down while addresses are still being announced.
// Announcements go first: one write costs the API server and its watchers a hundred times what a frame costs.
type pace struct {
	// inBurst reports whether many Services are getting addresses.
	inBurst func() bool
	// announcing reports whether announcements are still being sent.
	announcing func() bool
	slow       *rate.Limiter
	// yieldingSince is when the present announcements began; zero if none are being sent.
	yieldingSince time.Time
	// notBefore is when the next run of a burst may begin.
	notBefore time.Time
}

// newPace returns a pace that has written nothing yet.
func newPace(inBurst, announcing func() bool) pace {
	return pace{inBurst: inBurst, announcing: announcing, slow: rate.NewLimiter(0, 1)}
}

// delay returns how long a run must wait for a burst or for announcements; 0 if it may begin.
func (p *pace) delay(at time.Time) time.Duration {
	switch {
	case p.inBurst() && at.Before(p.notBefore):
		return min(slowWait, p.notBefore.Sub(at)) // the burst may end sooner
	case !p.announcing():
		p.yieldingSince = time.Time{}
		return 0
	case p.yieldingSince.IsZero():
		p.yieldingSince = at
	}
	return max(0, min(yieldTime/10, p.yieldingSince.Add(yieldTime).Sub(at)))
}

// write is a Service that waits to be written. It has the name only: thousands of whole updates would need as much
// memory as everything else.
type write struct {
	service lb.Key
	// corrects reports whether the Service has a wrong condition.
	corrects bool
}

// corrects reports whether an update removes or changes a condition that the Service has.
func corrects(u k8s.ServiceUpdate) bool {
	have := u.Service.Status.Conditions
	isThere := func(kind string) bool { return meta.FindStatusCondition(have, kind) != nil }
	if slices.ContainsFunc(u.RemoveConditions, isThere) {
		return true
	}
	changed := k8s.Changed(have, u.Conditions, 0, metav1.Time{})
	return slices.ContainsFunc(changed, func(c metav1.Condition) bool { return isThere(c.Type) })
}

// each calls send for each write, corrections first. In the slow pace it stops when this speaker, of so many, has used
// up its share. A write that the API server told to wait takes nothing of the share. each returns the time until it is
// to be called again, and 0 if that is not before something changes.
func (p *pace) each(writes []write, speakers int, send func(write) error) (again time.Duration, err error) {
	corrections := slices.DeleteFunc(slices.Clone(writes), func(w write) bool { return !w.corrects })
	rest := slices.DeleteFunc(slices.Clone(writes), func(w write) bool { return w.corrects })

	period, share := slowPace*time.Duration(max(1, speakers)), 1
	if p.inBurst() {
		share = max(share, int(burstWait/period))
	}
	p.slow.SetLimit(rate.Every(period))
	p.slow.SetBurst(share)

	var errs []error
	for i, one := range slices.Concat(corrections, rest) {
		isSlow := p.inBurst() || len(writes)-i > fewWrites && p.announcing()
		if isSlow && p.slow.Tokens() < 1 {
			if again == 0 && i >= len(corrections) {
				p.notBefore = time.Now().Add(burstWait)
			}
			again = daemon.Sooner(again, slowWait)
			break
		}

		err := send(one)
		if wait := k8s.Wait(err); wait > 0 {
			again = daemon.Sooner(again, wait)
			continue
		}
		p.slow.Allow()
		errs = append(errs, err)
	}
	return again, errors.Join(errs...)
}
