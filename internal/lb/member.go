package lb

// Member is what a speaker sends to the other speakers about its own node, as metadata of the membership.
type Member struct {
	// Stopping: the speaker is about to leave, and others should take over what it announces.
	Stopping bool
	// Unfit is what the node cannot do now.
	Unfit Unfit
	// Links on which the node can announce.
	Links []Link
	// Partial: Links is incomplete, because metadata has no room for more.
	Partial bool
}

// Unfit is a set of bits: what a node cannot do although its speaker lives. All nodes plan by it.
type Unfit uint8

const (
	// Booting: kube-proxy has not served since the node started, so that the node announces nothing.
	Booting Unfit = 1 << iota
	// Unfiltered: the packet filter is not in force, so that the node announces nothing that has source ranges.
	Unfiltered
	// SessionlessIPv4, SessionlessIPv6: none of its established BGP sessions carries routes of this family, so that nobody
	// leaves such routes to the node, and another one tells who advertises.
	SessionlessIPv4
	SessionlessIPv6

	// Sessionless: it advertises nothing at all.
	Sessionless = SessionlessIPv4 | SessionlessIPv6
)

// SessionlessOf returns the bit of a family.
func SessionlessOf(f Family) Unfit {
	if f == IPv6 {
		return SessionlessIPv6
	}
	return SessionlessIPv4
}

// Has reports whether the set has all bits of v.
func (u Unfit) Has(v Unfit) bool { return u&v == v }
