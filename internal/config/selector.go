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

// compileSelectors reads a list of selectors. An unreadable one stays in the list
// and matches nothing: without its only member a list would match all.
func compileSelectors(r *report, object lb.Object, field string, selectors []metav1.LabelSelector) []lb.Selector {
	var out []lb.Selector
	for i, s := range selectors {
		out = append(out, selectorOrNothing(r, object, fmt.Sprintf("%s[%d]", field, i), s))
	}
	return out
}

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
		expressions = append(
			expressions,
			metav1.LabelSelectorRequirement{
				Key:      key,
				Operator: metav1.LabelSelectorOpIn,
				Values:   []string{s.MatchLabels[key]},
			},
		)
	}
	parsed, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchExpressions: expressions})
	if err != nil {
		return nil, err
	}
	requirements, _ := parsed.Requirements()
	return selectorOf(requirements)
}

// readNodeSelector reads which nodes may announce a Service. An unreadable selector
// matches no node: it was meant as a restriction.
func readNodeSelector(r *report, object lb.Object, o *corev1.Service, opt Options) []lb.Selector {
	text, key := firstAnnotation(r, object, o, AnnotationNodeSelector, openstack.NodeSelector)
	if text == "" {
		if _, all := o.Annotations[openstack.NodeSelector]; all || opt.OpenStack.Ignore || opt.NodeSelector == nil {
			return nil
		}
		return []lb.Selector{opt.NodeSelector}
	}
	s, err := ParseNodeSelector(text)
	if err != nil {
		r.fault(object, lb.InvalidRequest, "annotation %s (%q) selects no node: %v", key, text, err)
		s = matchesNothing()
	}
	return []lb.Selector{s}
}

// ParseNodeSelector reads key=value, key!=value, key in (a, b), key notin (a, b),
// key and !key, separated by commas; "" is none. OpenStack's cloud controller manager knows
// key=value and key, which mean the same here.
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
	return out, selectorFault(out)
}

// selectorOf returns requirements, which are ordered by key, as ours.
func selectorOf(parsed labels.Requirements) (lb.Selector, error) {
	out := lb.Selector{}
	for _, r := range parsed {
		operator, known := operators[r.Operator()]
		if !known {
			return nil, fmt.Errorf("operator %s is not supported", r.Operator())
		}
		out = append(out, lb.Requirement{Key: r.Key(), Operator: operator, Values: r.Values().List()})
	}
	return out, nil
}

var operators = map[selection.Operator]lb.Operator{
	selection.Equals: lb.In, selection.DoubleEquals: lb.In, selection.In: lb.In,
	selection.NotEquals: lb.NotIn, selection.NotIn: lb.NotIn,
	selection.Exists: lb.Exists, selection.DoesNotExist: lb.DoesNotExist,
}
