package config

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// compileSelectors reads a list of selectors. An unreadable one stays in the list
// and matches nothing: without its only member a list would match all.
func compileSelectors(r *report, object lb.Object, field string, selectors []metav1.LabelSelector) []lb.Selector {
	var out []lb.Selector
	for i, s := range selectors {
		out = append(out, selectorOrNothing(r, object, fmt.Sprintf("%s[%d]", field, i), s))
	}
	return out
}

// selectorOrNothing reads one selector.
func selectorOrNothing(r *report, object lb.Object, field string, s metav1.LabelSelector) lb.Selector {
	compiled, err := compileSelector(s)
	if err != nil {
		r.fault(object, lb.InvalidSelector, "%s matches nothing: %v", field, err)
		return matchesNothing()
	}
	return compiled
}

// matchesNothing accepts no value that a label could have.
func matchesNothing() lb.Selector { return lb.Selector{{Operator: lb.In}} }

func compileSelector(s metav1.LabelSelector) (lb.Selector, error) {
	expressions := slices.Clone(s.MatchExpressions)
	for key, value := range s.MatchLabels {
		expressions = append(expressions, metav1.LabelSelectorRequirement{
			Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value},
		})
	}
	slices.SortFunc(expressions, func(a, b metav1.LabelSelectorRequirement) int {
		return cmp.Or(
			cmp.Compare(a.Key, b.Key),
			cmp.Compare(a.Operator, b.Operator),
			slices.Compare(a.Values, b.Values),
		)
	})
	out := lb.Selector{}
	for _, e := range expressions {
		// One at a time, so that with two mistakes the message always names the same one.
		if _, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{e}}); err != nil {
			return nil, err
		}
		out = append(out, lb.Requirement{Key: e.Key, Operator: lb.Operator(e.Operator), Values: slices.Clone(e.Values)})
	}
	return out, nil
}
