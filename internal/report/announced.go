package report

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// announced is what became of the addresses that this node was to announce.
type announced map[netip.Addr]layer2.AddressState

func announcedOf(s layer2.State) announced {
	out := make(announced, len(s.Addresses))
	for _, a := range s.Addresses {
		out[a.Address] = a
	}
	return out
}

// on adds to the outcome of the plan what only the links know: where an address
// is announced, that it is not, and who else has it. It reports false while an
// address is still being asked for: there is nothing to say yet.
func (is announced) on(o plan.Outcome, node string) (plan.Outcome, bool) {
	for _, a := range o.Owned {
		state, set := is[a]
		if !set || state.Pending() {
			return o, false
		}
		by := lb.AnnouncedBy(a, node)
		switch {
		case state.Conflict != nil && !state.Answered():
			o.Reason = lb.AddressConflict
			o.Message = strings.Replace(o.Message, by, fmt.Sprintf("%s is in use by %s on %s, seen by node %s: free it there, or ask for another address",
				a, state.Conflict.MAC, state.Conflict.Link, node), 1)
		case len(state.Links) == 0 && len(state.Refused) > 0:
			o.Reason = lb.SocketRefused
			o.Message = strings.Replace(o.Message, by, fmt.Sprintf("%s is to be announced from node %s, which cannot answer for it: %s",
				a, node, strings.Join(state.Refused, ", ")), 1)
		case len(state.Links) == 0:
			o.Reason = lb.NoLink
			o.Message = strings.Replace(o.Message, by, fmt.Sprintf("%s is to be announced from node %s, which has no link to do so: check that one is up, and the interfaces of the L2Advertisement",
				a, node), 1)
		default:
			o.Message = strings.Replace(o.Message, by, by+" on "+strings.Join(state.Links, " and "), 1)
		}
	}
	return o, true
}

// contested returns a sentence for each announced address that a machine which is
// not ours says to have too.
func (is announced) contested(o plan.Outcome, node string) []string {
	var out []string
	for _, a := range o.Owned {
		if c := is[a].Conflict; c != nil && is[a].Answered() {
			out = append(out, fmt.Sprintf("%s on %s says that it has %s, which node %s announces: take it from that machine", c.MAC, c.Link, a, node))
		}
	}
	return out
}
