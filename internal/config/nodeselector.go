package config

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// readNodeSelector reads which nodes may announce a Service. An unreadable selector
// matches no node: it was meant as a restriction.
func readNodeSelector(r *report, object lb.Object, o *corev1.Service) []lb.Selector {
	text := strings.TrimSpace(o.Annotations[AnnotationNodeSelector])
	if text == "" {
		return nil
	}
	s, err := parseNodeSelector(text)
	if err != nil {
		r.fault(object, lb.InvalidRequest, "annotation %s (%q) selects no node: %v", AnnotationNodeSelector, text, err)
		s = matchesNothing()
	}
	return []lb.Selector{s}
}

// ParseNodeSelector reads OCCM's default of node-selector; "" is none.
func ParseNodeSelector(text string) (lb.Selector, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	return parseNodeSelector(text)
}

// parseNodeSelector reads key=value, key!=value, key in (a, b), key notin (a, b),
// key and !key, separated by commas. OpenStack's cloud controller manager knows
// key=value and key, which mean the same here.
func parseNodeSelector(text string) (lb.Selector, error) {
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
