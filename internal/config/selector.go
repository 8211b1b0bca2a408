package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// compileSelectors reads a list of selectors. An invalid selector stays in the list and matches nothing: an empty list
// would match everything.
func compileSelectors(
	r *problemList,
	object lb.Object,
	field string,
	selectors []metav1.LabelSelector,
) []lb.Selector {
	var out []lb.Selector
	for i, s := range selectors {
		name := fmt.Sprintf("%s[%d]", field, i)
		out = append(out, selectorOrNothing(r, object, name, s))
	}

	return out
}

// selectorOrNothing reads a selector. It reports an invalid one, and returns a selector that matches nothing.
func selectorOrNothing(r *problemList, object lb.Object, field string, s metav1.LabelSelector) lb.Selector {
	compiled, err := compileSelector(s)
	if err != nil {
		r.add(object, lb.InvalidSelector, "%s matches nothing: %v", field, err)
		return matchesNothing()
	}

	return compiled
}

// matchesNothing returns a selector that accepts no value of a label.
func matchesNothing() lb.Selector { return lb.Selector{{Operator: lb.In}} }

// compileSelector reads a selector of the API.
func compileSelector(s metav1.LabelSelector) (lb.Selector, error) {
	// The keys are sorted so that the error always names the same mistake.
	expressions := slices.Clone(s.MatchExpressions)
	for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		expressions = append(expressions, metav1.LabelSelectorRequirement{
			Key:      key,
			Operator: metav1.LabelSelectorOpIn,
			Values:   []string{s.MatchLabels[key]},
		})
	}

	parsed, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: expressions})
	if err != nil {
		return nil, err
	}

	requirements, _ := parsed.Requirements()
	return selectorOf(requirements)
}

// readNodeSelector reads which nodes may announce a Service. An invalid selector matches no node, because it was meant
// as a restriction.
func readNodeSelector(r *problemList, object lb.Object, o *corev1.Service, opt Options) []lb.Selector {
	text, key := firstAnnotation(r, object, o, AnnotationNodeSelector, openstack.NodeSelector)
	if text == "" {
		_, selectsAll := o.Annotations[openstack.NodeSelector]
		if selectsAll || opt.OpenStack.Ignore || opt.NodeSelector == nil {
			return nil
		}
		return []lb.Selector{opt.NodeSelector}
	}

	s, err := ParseNodeSelector(text)
	if err != nil {
		r.add(object, lb.InvalidRequest, "annotation %s (%q) selects no node: %v", key, text, err)
		s = matchesNothing()
	}

	return []lb.Selector{s}
}

// ParseNodeSelector reads key=value, key!=value, key in (a, b), key notin (a, b), key and !key, separated by commas. It
// returns nil for "". OpenStack's cloud controller manager has key=value and key, with the same meaning.
func ParseNodeSelector(text string) (lb.Selector, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}

	parsed, err := labels.ParseToRequirements(text)
	if err != nil {
		return nil, fmt.Errorf("it cannot be read: %w", err)
	}

	out, err := selectorOf(parsed)
	if err != nil {
		return nil, err
	}

	return out, checkSelectorTerms(out)
}

// selectorOf converts requirements, which are ordered by key.
func selectorOf(parsed labels.Requirements) (lb.Selector, error) {
	out := lb.Selector{}
	for _, r := range parsed {
		operator, ok := operators[r.Operator()]
		if !ok {
			return nil, fmt.Errorf("operator %s is not supported", r.Operator())
		}

		out = append(out, lb.Requirement{
			Key:      r.Key(),
			Operator: operator,
			Values:   r.Values().List(),
		})
	}

	return out, nil
}

// operators has our operator for each operator of the API.
var operators = map[selection.Operator]lb.Operator{
	selection.Equals:       lb.In,
	selection.DoubleEquals: lb.In,
	selection.In:           lb.In,
	selection.NotEquals:    lb.NotIn,
	selection.NotIn:        lb.NotIn,
	selection.Exists:       lb.Exists,
	selection.DoesNotExist: lb.DoesNotExist,
}
