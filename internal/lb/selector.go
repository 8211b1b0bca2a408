package lb

import "slices"

// Operator is the relation of a Requirement, as in Kubernetes' LabelSelector.
type Operator string

// The operators of Kubernetes' LabelSelector.
const (
	In           Operator = "In"
	NotIn        Operator = "NotIn"
	Exists       Operator = "Exists"
	DoesNotExist Operator = "DoesNotExist"
)

// Requirement is one condition on a label.
type Requirement struct {
	Key      string
	Operator Operator
	Values   []string
}

// Selector matches labels if all its requirements hold; the empty Selector matches all labels.
type Selector []Requirement

// Matches reports whether every requirement holds for labels.
func (s Selector) Matches(labels map[string]string) bool {
	for _, r := range s {
		if !r.matches(labels) {
			return false
		}
	}
	return true
}

func (r Requirement) matches(labels map[string]string) bool {
	value, has := labels[r.Key]
	switch r.Operator {
	case In:
		return has && slices.Contains(r.Values, value)
	case NotIn:
		return !has || !slices.Contains(r.Values, value)
	case Exists:
		return has
	case DoesNotExist:
		return !has
	}
	panic("lb: unknown selector operator " + string(r.Operator))
}

// MatchesAny reports whether one of the selectors matches; an empty list matches nothing.
func MatchesAny(selectors []Selector, labels map[string]string) bool {
	return slices.ContainsFunc(selectors, func(s Selector) bool { return s.Matches(labels) })
}
