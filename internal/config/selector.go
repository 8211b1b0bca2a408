package config

import (
	"fmt"
	"maps"
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
	// In one order, so that with two mistakes the message always names the same one.
	expressions := slices.Clone(s.MatchExpressions)
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		expressions = append(expressions, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{s.MatchLabels[key]}})
	}
	parsed, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: expressions})
	if err != nil {
		return nil, err
	}
	requirements, _ := parsed.Requirements()
	return selectorOf(requirements)
}
