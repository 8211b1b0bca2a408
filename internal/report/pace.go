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
	// crowdPace is between two reports while many Services get their addresses, for
	// each living speaker: all together write two a second at most.
	crowdPace = 500 * time.Millisecond
	// fewReports are written at once in any case where only announcements go before them.
	fewReports = 10
	// crowdWait is until a crowd is looked at again.
	crowdWait = time.Second
	// overtakenWait is until the watch shows what a report was overtaken by.
	overtakenWait = 200 * time.Millisecond
)

// report is what is to stand on one Service, and how much news that is.
type report struct {
	k8s.ServiceUpdate
	news news
}

// news orders reports: the lowest is written first.
type news int

const (
	// wrong: something else stands.
	wrong news = iota
	// served: that the Service is announced, of which nothing stands yet.
	served
	// unserved: that it is not.
	unserved
	// refused: any that the API server did not take when it was last tried. One that it
	// never takes must not use up the room of all others.
	refused
)

func newsOf(u k8s.ServiceUpdate) news {
	least := unserved
	if len(u.RemoveConditions) > 0 {
		least = wrong
	}
	for _, c := range k8s.Changed(u.Service.Status.Conditions, u.Conditions, 0, metav1.Time{}) {
		switch {
		case meta.FindStatusCondition(u.Service.Status.Conditions, c.Type) != nil:
			least = wrong
		case c.Status == metav1.ConditionTrue:
			least = min(least, served)
		}
	}
	return least
}

// pace lets the addresses of a crowd of Services pass before what became of them, and
// the announcing of many addresses before the word of it: a write costs the API server,
// and all who watch it, a hundred times what a frame costs.
type pace struct {
	// crowded reports whether many Services are getting their addresses.
	crowded func() bool
	// announcing reports whether neighbours are still being told of addresses.
	announcing func() bool
	// at is when reports were last written in a crowd.
	at time.Time
	// refused are the Services whose report was refused when it was last tried.
	refused map[lb.Key]bool
}

// each writes reports, the news first; in a crowd, and many while announcing, only as many
// as there is room for with so many speakers. It returns when it is to be called again, 0 for not before
// there is something new.
func (p *pace) each(reports []report, speakers int, write func(k8s.ServiceUpdate) error) (again time.Duration, err error) {
	for i, one := range reports {
		if p.refused[keyOf(one.Service)] {
			reports[i].news = refused
		}
	}
	slices.SortStableFunc(reports, func(a, b report) int { return int(a.news - b.news) })
	p.refused = map[lb.Key]bool{}
	var errs []error
	room, crowded := 0, false
	for i, one := range reports {
		if !crowded && (p.crowded() || len(reports)-i > fewReports && p.announcing()) {
			crowded, room = true, p.room(time.Now(), speakers)
		}
		if crowded && room == 0 {
			again = crowdWait
			p.refuse(reports[i:])
			break
		}
		room--
		switch err := write(one.ServiceUpdate); {
		case k8s.Overtaken(err):
			again = overtakenWait
		case err != nil:
			errs = append(errs, err)
			one.news = refused
			p.refuse([]report{one})
		}
	}
	return again, errors.Join(errs...)
}

// refuse remembers those of the reports that were refused.
func (p *pace) refuse(reports []report) {
	for _, one := range reports {
		if one.news == refused {
			p.refused[keyOf(one.Service)] = true
		}
	}
}

// room is how many reports may be written now that there is a crowd.
func (p *pace) room(now time.Time, speakers int) int {
	interval := crowdPace * time.Duration(max(1, speakers))
	passed := min(now.Sub(p.at), max(crowdWait, interval))
	p.at = now.Add(-passed % interval)
	return int(passed / interval)
}
