package config

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// problemList collects Problems.
type problemList struct {
	list []*lb.Problem
}

// add adds a Problem, and returns it for objects that wait because of it.
func (r *problemList) add(o lb.Object, reason lb.Reason, format string, args ...any) *lb.Problem {
	p := &lb.Problem{
		Object:  o,
		Reason:  reason,
		Message: fmt.Sprintf(format, args...),
	}
	r.list = append(r.list, p)
	return p
}

// addNote adds a Problem that is a note: the object is in force all the same.
func (r *problemList) addNote(o lb.Object, reason lb.Reason, format string, args ...any) {
	r.add(o, reason, format, args...).Note = true
}

// sorted returns the Problems ordered by object, reason and message.
func (r *problemList) sorted() (out []lb.Problem) {
	slices.SortFunc(r.list, func(a, b *lb.Problem) int {
		return cmp.Or(
			cmp.Compare(a.Object.Kind, b.Object.Kind),
			cmp.Compare(a.Object.Namespace, b.Object.Namespace),
			cmp.Compare(a.Object.Name, b.Object.Name),
			cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Message, b.Message),
		)
	})

	for _, p := range r.list {
		out = append(out, *p)
	}

	return out
}

// markWaiting marks the first of the Problems as the reason why an object waits, and returns it. Nil Problems do not
// count.
func markWaiting(problems ...*lb.Problem) *lb.Problem {
	first := cmp.Or(problems...)
	if first != nil {
		first.Waits = true
	}
	return first
}
