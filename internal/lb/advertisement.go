package lb

import "slices"

// Scope is which pools, nodes and Services an advertisement selects.
type Scope struct {
	// Pools by name, and PoolSelectors by label; both empty select all pools.
	Pools         []string
	PoolSelectors []Selector
	// NodeSelectors: none selects all nodes.
	NodeSelectors []Selector
	// ServiceSelectors: none selects all Services.
	ServiceSelectors []Selector
}

// L2Advertisement says which addresses are announced by ARP and NDP, and where.
type L2Advertisement struct {
	Name string
	Scope
	// Links are the exact names of the links to announce on; none means all usable links.
	Links []string
	// Preferred raises the rank of nodes that may announce, by the sum of the weights that match.
	Preferred []Preference
}

// Preference is the weight of the nodes that a selector matches.
type Preference struct {
	Weight   int
	Selector Selector
}

// BGPAdvertisement says which addresses become routes, and for which peers.
type BGPAdvertisement struct {
	Name string
	Scope
	// AggregationLength is the prefix length of IPv4 routes, 1 to 32.
	AggregationLength int
	// AggregationLengthV6 is the prefix length of IPv6 routes, 1 to 128.
	AggregationLengthV6 int
	// LocalPref is sent to peers of the same AS only; 0 is not sent.
	LocalPref uint32
	// Prepend is how often our AS is in AS_PATH beyond once.
	Prepend     uint8
	MED         MED
	Communities []Community
	// Peers by name; none means all.
	Peers []string
}

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
