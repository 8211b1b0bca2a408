package lb

import "time"

// APIMargin is by how much one node must have heard the API server later than another one for its spec to count as
// newer.
const APIMargin = 5 * time.Second

// Precedence decides which of two nodes keeps an address that both own by their plans. Each states its own, so the
// states of other nodes, which may be stale, do not count.
type Precedence struct {
	// HeldDown reports whether the node is held down, or at fault.
	HeldDown bool
	// APIAge is how long ago the node heard the API server.
	APIAge time.Duration
}

// Over reports whether a node with this precedence keeps the address. Of two nodes at most one does: the node whose
// spec is newer, else a node that is not held down. Between equals neither does: no order of their own shows which of
// them the other nodes take for the owner.
func (p Precedence) Over(other Precedence) bool {
	switch {
	case other.APIAge > p.APIAge+APIMargin:
		return true
	case p.APIAge > other.APIAge+APIMargin:
		return false
	}
	return other.HeldDown && !p.HeldDown
}

// MayYield reports whether a node with this precedence may have to leave an address to another one.
func (p Precedence) MayYield() bool { return p.HeldDown || p.APIAge > APIMargin }
