package liveness

import (
	"fmt"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// networkProblems returns what a user must fix in the network around a node: heartbeats, gossip and echoes that do not
// arrive, and links that the node leaves to other nodes. nodePath is the link of the node's address, if that is known.
func networkProblems(
	c Config,
	members []detect.Member,
	withoutEcho []string,
	nodePath string,
	links linkFindings,
) []lb.Problem {
	var out []lb.Problem
	add := func(reason lb.Reason, format string, args ...any) {
		out = append(out, lb.Problem{Object: c.Node, Reason: reason, Message: fmt.Sprintf(format, args...)})
	}

	isByFrames := func(m detect.Member) bool { return m.Blocked && m.ByFrames }
	byFrames := namesOf(members, isByFrames)
	if len(byFrames) > 0 {
		add(
			lb.HeartbeatsBlocked,
			"node %s gets no heartbeats from %s on UDP port %d of link %s: frames of their speakers there replace them",
			c.Node.Name,
			lb.SomeOf(byFrames),
			c.HeartbeatPort,
			nodePath,
		)
	}

	blocked := namesOf(members, func(m detect.Member) bool { return m.Blocked && !m.ByFrames })
	if len(blocked) > 0 {
		add(lb.HeartbeatsBlocked, "node %s gets no heartbeats from %s on UDP port %d, though their speakers answer gossip: "+
			"a failover takes seconds", c.Node.Name, lb.SomeOf(blocked), c.HeartbeatPort)
	}

	gossipBlocked := namesOf(members, func(m detect.Member) bool { return m.GossipBlocked })
	if len(gossipBlocked) > 0 {
		add(lb.HeartbeatsBlocked, "node %s gets no gossip from %s on TCP and UDP port %d, though their heartbeats arrive: "+
			"it does not learn what they can announce, so that an address may have no announcer or two",
			c.Node.Name, lb.SomeOf(gossipBlocked), c.MembersPort)
	}

	if len(withoutEcho) > 0 {
		add(lb.EchoBlocked, "node %s gets no echo from %s, though their heartbeats arrive: a switch that answers ARP for "+
			"others may keep addresses with a dead node. Speakers of an older version have no echo",
			c.Node.Name, lb.SomeOf(withoutEcho))
	}

	if len(links.blocked) > 0 {
		add(lb.EchoBlocked, "node %s gets no frames of EtherType 0x88B5 on %s any more, though machines answer ARP or "+
			"Neighbor Discovery there: these judge the link", c.Node.Name, lb.SomeOf(links.blocked))
	}

	if len(links.unanswered) > 0 {
		add(lb.LinkSilent, "node %s receives no answers on %s although the link is up; other nodes announce there",
			c.Node.Name, lb.SomeOf(links.unanswered))
	}

	if len(links.returned) > 0 {
		add(lb.LinkSilent, "node %s leaves links that returned to other nodes until machines have answered there for the "+
			"time in brackets: %s", c.Node.Name, lb.SomeOf(links.returned))
	}

	if len(links.divided) > 0 {
		add(lb.LinkDivided, "node %s hears some nodes on a link, and does not hear those in brackets, which hear others "+
			"there: the link is divided, and an address has one owner for both sides: %s",
			c.Node.Name, lb.SomeOf(links.divided))
	}

	return out
}

// namesOf returns the names of the members that match.
func namesOf(members []detect.Member, matches func(detect.Member) bool) (names []string) {
	for _, m := range members {
		if matches(m) {
			names = append(names, m.Name)
		}
	}
	slices.Sort(names)

	return names
}
