package lb

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
