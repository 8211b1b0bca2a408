package liveness

import (
	"fmt"
	"maps"
	"slices"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// problems returns what a user must mend in the network around a node: heartbeats that do not
// arrive, and links on which nobody answers.
func problems(node lb.Object, members []heartbeat.Member, port uint16, withoutEcho []string, silent map[string]bool) []lb.Problem {
	var out []lb.Problem
	var blocked []string
	for _, m := range members {
		if m.Blocked {
			blocked = append(blocked, m.Name)
		}
	}
	if len(blocked) > 0 {
		slices.Sort(blocked)
		out = append(out, lb.Problem{Object: node, Reason: lb.HeartbeatsBlocked, Message: fmt.Sprintf(
			"node %s gets no heartbeats from %s, though their speakers answer gossip: open UDP port %d between all nodes, or a failover takes seconds",
			node.Name, lb.SomeOf(blocked), port)})
	}
	if len(withoutEcho) > 0 {
		out = append(out, lb.Problem{Object: node, Reason: lb.EchoBlocked, Message: fmt.Sprintf(
			"node %s gets no echo from %s, though their heartbeats arrive: let EtherType 0x88B5 pass between all nodes, or a switch that answers ARP for others "+
				"keeps addresses with a dead node. Speakers of an older version have no echo",
			node.Name, lb.SomeOf(withoutEcho))})
	}
	if len(silent) > 0 {
		out = append(out, lb.Problem{Object: node, Reason: lb.LinkSilent, Message: fmt.Sprintf(
			"node %s hears nobody on %s, though the link is up, and leaves what is announced there to others",
			node.Name, lb.SomeOf(slices.Sorted(maps.Keys(silent))))})
	}
	return out
}
