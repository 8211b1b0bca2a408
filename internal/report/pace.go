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
	// fewWrites is the number of Services that are written at once although addresses are still being announced.
	fewWrites = 10
	// slowWait is the time between two runs in the slow pace.
	slowWait = time.Second
	// burstWait is the time between two runs in a burst: comparing thousands of Services takes longer than the few
	// writes that the pace allows.
	burstWait = 5 * time.Second
	// yieldTime is the maximum time for which a run waits for announcements. Comparing a thousand Services takes a core
	// longer than announcing them, and a link that takes no frame must not stop all writes.
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
	// yieldingSince is the time at which the present announcements began; zero if none are being sent.
	yieldingSince time.Time
	// notBefore is the time from which the next run of a burst may begin.
	notBefore time.Time
}

// newPace returns a pace that has written nothing yet.
func newPace(inBurst, announcing func() bool) pace {
	return pace{
		inBurst:    inBurst,
		announcing: announcing,
		slow:       rate.NewLimiter(0, 1),
	}
}

// delay returns the time for which a run must wait for a burst or for announcements; 0 if it may begin.
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

	left := p.yieldingSince.Add(yieldTime).Sub(at)
	return max(0, min(yieldTime/10, left))
}

// write is a Service that waits to be written. It only has the name, since thousands of whole updates would need as
// much memory as everything else.
type write struct {
	service lb.Key
	// corrects reports whether the Service has a wrong condition.
	corrects bool
}

// corrects reports whether an update removes or changes a condition that the Service has.
func corrects(u k8s.ServiceUpdate) bool {
	have := u.Service.Status.Conditions
	exists := func(kind string) bool {
		return meta.FindStatusCondition(have, kind) != nil
	}
	if slices.ContainsFunc(u.RemoveConditions, exists) {
		return true
	}

	changed := k8s.Changed(have, u.Conditions, 0, metav1.Time{})
	return slices.ContainsFunc(changed, func(c metav1.Condition) bool {
		return exists(c.Type)
	})
}

// correctionsFirst returns the writes, and the number of corrections among them, which come first.
func correctionsFirst(writes []write) (ordered []write, corrections int) {
	var others []write
	for _, w := range writes {
		if w.corrects {
			ordered = append(ordered, w)
		} else {
			others = append(others, w)
		}
	}

	return append(ordered, others...), len(ordered)
}

// each calls send for each write, corrections first. In the slow pace it stops when this speaker has used up its share;
// speakers is the number of speakers. A write that the API server defers does not count. each returns the time until it
// must be called again; 0 if it need not be called before something changes.
func (p *pace) each(writes []write, speakers int, send func(write) error) (again time.Duration, err error) {
	ordered, corrections := correctionsFirst(writes)
	period := slowPace * time.Duration(max(1, speakers))
	share := 1
	if p.inBurst() {
		share = max(share, int(burstWait/period))
	}

	p.slow.SetLimit(rate.Every(period))
	p.slow.SetBurst(share)

	var errs []error
	for i, one := range ordered {
		hasMany := len(writes)-i > fewWrites
		isSlow := p.inBurst() || hasMany && p.announcing()
		if isSlow && p.slow.Tokens() < 1 {
			onlyOthersLeft := again == 0 && i >= corrections
			if onlyOthersLeft {
				p.notBefore = time.Now().Add(burstWait)
			}

			again = daemon.Sooner(again, slowWait)
			break
		}

		err := send(one)
		wait := k8s.Wait(err)
		if wait > 0 {
			again = daemon.Sooner(again, wait)
			continue
		}

		p.slow.Allow()
		errs = append(errs, err)
	}

	return again, errors.Join(errs...)
}
