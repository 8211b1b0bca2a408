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

// on completes an outcome of layer 2 by what only the links know, and words it: where this node announces an
// address, that it does not, and who else has it. record is the value of AnnotationAnnouncedBy. known is false
// while an address is still being asked for: there is nothing to say yet.
func (is announced) on(o plan.Outcome, node string) (out plan.Outcome, record string, known bool) {
	var sentences, by []string
	for _, a := range o.Announcers {
		reason, sentence := lb.Announced, announcer(a, "")
		if a.Node == node {
			state, set := is[a.Address]
			if !set || state.Pending() {
				return o, "", false
			}
			reason, sentence = here(a, state)
		}
		sentences = append(sentences, sentence)
		if reason == lb.Announced {
			by = append(by, a.Address.String()+"="+a.Node)
		} else {
			o.Reason = reason
		}
	}
	announced := strings.Join(sentences, ", ")
	switch {
	case o.Message == "":
		o.Message = announced
	case announced != "":
		o.Message = announced + "; the rest waits: " + o.Message
	}
	return o, strings.Join(by, ","), true
}

// announcer is the sentence on one that announces.
func announcer(a plan.Announcer, on string) string {
	out := fmt.Sprintf("%s by node %s%s", a.Address, a.Node, on)
	if a.Remark != "" {
		out += " (" + a.Remark + ")"
	}
	return out
}

// here is the sentence on an address that this node is to announce, and lb.Announced if it does.
func here(a plan.Announcer, is layer2.AddressState) (lb.Reason, string) {
	switch {
	case is.Conflict != nil && !is.Answered():
		return lb.AddressConflict, fmt.Sprintf("%s is in use by %s on %s, seen by node %s: free it there, or ask for another address",
			a.Address, is.Conflict.MAC, is.Conflict.Link, a.Node)
	case len(is.Links) == 0 && len(is.Refused) > 0:
		return lb.SocketRefused, fmt.Sprintf("%s is to be announced from node %s, which cannot answer for it: %s",
			a.Address, a.Node, strings.Join(is.Refused, ", "))
	case len(is.Links) == 0:
		return lb.NoLink, fmt.Sprintf("%s is to be announced from node %s, which has no link to do so: check that one is up, and the interfaces of the L2Advertisement",
			a.Address, a.Node)
	}
	return lb.Announced, announcer(a, " on "+strings.Join(is.Links, " and "))
}

// contested returns a sentence for each address that this node announces and a machine which is
// not ours claims too.
func (is announced) contested(o plan.Outcome, node string) []string {
	var out []string
	for _, a := range o.Announcers {
		if c := is[a.Address].Conflict; a.Node == node && c != nil && is[a.Address].Answered() {
			out = append(out, fmt.Sprintf("%s on %s says that it has %s, which node %s announces: take it from that machine", c.MAC, c.Link, a.Address, node))
		}
	}
	return out
}
