package report

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/layer2"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// announced has the layer 2 state of each address that this node owns.
type announced map[netip.Addr]layer2.AddressState

func announcedOf(s layer2.State) announced {
	out := make(announced, len(s.Addresses))
	for _, a := range s.Addresses {
		out[a.Address] = a
	}
	return out
}

// complete adds to an outcome of layer 2 what only the links know, as a sentence: on which links this node announces
// an address, or why it does not. record is the message of ConditionAnnouncers. known is false while this node still
// probes for an address: there is nothing to write yet.
func (is announced) complete(o plan.Outcome, node string) (out plan.Outcome, record string, known bool) {
	var sentences, entries []string
	for _, a := range o.Announcers {
		reason, sentence := lb.Announced, announcedBy(a, "")
		if a.Node == node {
			state, set := is[a.Address]
			if !set || state.Pending() {
				return o, "", false
			}
			reason, sentence = announcedHere(a, state)
		}
		sentences = append(sentences, sentence)
		if reason == lb.Announced {
			entries = append(entries, a.Address.String()+"="+a.Node)
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
	return o, strings.Join(entries, ","), true
}

// announcedBy returns the sentence on an address that is announced; links says on which links, if that is known.
func announcedBy(a plan.Announcer, links string) string {
	out := fmt.Sprintf("%s by node %s%s", a.Address, a.Node, links)
	if a.Remark != "" {
		out += " (" + a.Remark + ")"
	}
	return out
}

// announcedHere returns lb.Announced, or why this node does not announce an address that it owns; and the sentence.
func announcedHere(a plan.Announcer, is layer2.AddressState) (lb.Reason, string) {
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
	links := " on " + strings.Join(is.Links, " and ")
	if c := is.Conflict; c != nil {
		links += fmt.Sprintf(" (%s on %s says that it has it too)", c.MAC, c.Link)
	}
	return lb.Announced, announcedBy(a, links)
}

// conflicts returns a sentence for each address that this node announces although another machine claims it.
func (is announced) conflicts(o plan.Outcome, node string) []string {
	var out []string
	for _, a := range o.Announcers {
		if c := is[a.Address].Conflict; a.Node == node && c != nil && is[a.Address].Answered() {
			out = append(out, fmt.Sprintf("%s on %s says that it has %s, which node %s announces: take it from that machine", c.MAC, c.Link, a.Address, node))
		}
	}
	return out
}
