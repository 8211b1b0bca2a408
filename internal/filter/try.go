package filter

import (
	"slices"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// Extras are the parts of the table that a node can omit if its kernel lacks a feature.
type Extras struct {
	// Internal redirects traffic from within the cluster to the ClusterIP.
	Internal bool
	// Limits counts the connections of a frontend.
	Limits bool
	// Log writes refused packets to NFLOG.
	Log bool
	// Routes looks up the route of a packet.
	Routes bool
}

// Try asks the kernel whether it accepts the table with these extras, and changes nothing.
func Try(e Extras) error {
	return e.sample().Try()
}

// sample returns the table with a profile of every kind.
func (e Extras) sample() *nft.Layout {
	l := *layout{
		internal: e.Internal,
		log:      e.Log,
		routes:   e.Routes,
	}.table()
	limit := 0
	if e.Limits {
		limit = 1
	}

	sets, chains := samples(limit)
	l.Sets = slices.Concat(l.Sets, sets)
	l.Chains = slices.Concat(l.Chains, chains)
	return &l
}
