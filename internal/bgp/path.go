package bgp

// Path is what is known of the path to a peer.
type Path struct {
	// State of the BFD session: up, down or admin-down; empty without one.
	State string
	// Hold says whether the peer must have no BGP session, and Why is a sentence about it.
	Hold Hold
	Why  string
	// Note, unless empty, is shown of a session that is not established, beside its error.
	Note string
}

// Hold is what keeps a peer without a session.
type Hold uint8

// The holds, and what ends each.
const (
	// Free is none.
	Free Hold = iota
	// PathUnknown: BFD has not reported. It ends when it reports, or after a time.
	PathUnknown
	// PathDown: BFD is not up. It ends when it is, or after a time of silence.
	PathDown
	// PathUnwatched: BFD is refused by this node. It ends with other settings, or when the kernel does not refuse any more.
	PathUnwatched
	// RouterSought and RouterMissing: no router is known on the link, which is no error yet, or is one. They end when one is.
	RouterSought
	RouterMissing
)

// explain returns why a session is not established, of which BGP itself says something or nothing.
func (p Path) explain(text string) string {
	switch {
	case p.Hold == RouterSought:
		return ""
	case p.Hold != Free:
		return p.Why
	case text != "" && p.Note != "":
		return text + "; " + p.Note
	}
	return text
}
