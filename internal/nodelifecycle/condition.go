package nodelifecycle

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"k8s.io/apimachinery/pkg/api/meta"
)

// nodeCondition is the condition EndpointsWithdrawn of a node's SpeakerState, and the Event on the Node that reports
// it.
type nodeCondition struct {
	node    string
	reason  lb.Reason
	message string
	// event is the message of the Event; "" if it is the same. It may have figures: if the condition had them, it would
	// change with every vote.
	event string
}

// isFinal reports whether the node needs nothing more.
func (c nodeCondition) isFinal() bool {
	return c.reason == lb.NodeReachable || c.reason == lb.NodeGivenUp
}

// unreachable returns the condition of a node whose endpoints are withdrawn.
func unreachable(node string, votes, speakers int) nodeCondition {
	const consequence = "ready pods on it that back Services are marked not ready"
	return nodeCondition{
		node:    node,
		reason:  lb.NodeUnreachable,
		message: "most speakers cannot reach the node, so " + consequence,
		event:   fmt.Sprintf("the speakers of %d of %d nodes cannot reach it: %s", votes, speakers, consequence),
	}
}

// tooMany returns the condition of one of the spared nodes.
func tooMany(node string, spared []string, limit int) nodeCondition {
	consequence := fmt.Sprintf("exceeds deadEndpoints.maxNodes (%d); endpoints are kept", limit)
	return nodeCondition{
		node:    node,
		reason:  lb.TooManyUnreachable,
		message: "most speakers cannot reach the node; the number of such nodes " + consequence,
		event: fmt.Sprintf("most speakers cannot reach %s; their number %s",
			strings.Join(spared, ", "), consequence),
	}
}

// otherConditions returns the conditions of nodes whose pods are not changed: nodes that Kubernetes has given up,
// spared nodes, and nodes that were spared before and are neither spared nor pending any more.
func (s runInput) otherConditions(d decision, pending map[string]time.Time) []nodeCondition {
	var out []nodeCondition

	for _, node := range d.handOver {
		out = append(out, nodeCondition{
			node:    node,
			reason:  lb.NodeGivenUp,
			message: "Kubernetes itself has given the node up: its pods are left to the node lifecycle controller",
		})
	}

	for _, node := range d.spared {
		out = append(out, tooMany(node, d.spared, s.limit.Of(s.speakers)))
	}

	for _, o := range s.speakerStates {
		node := o.Name
		c := meta.FindStatusCondition(o.Status.Conditions, v1beta1.ConditionEndpointsWithdrawn)
		wasSpared := c != nil && c.Reason == string(lb.TooManyUnreachable)
		isOpen := slices.Contains(d.spared, node) || !pending[node].IsZero()
		if !wasSpared || isOpen {
			continue
		}

		out = append(out, nodeCondition{
			node:    node,
			reason:  lb.NodeReachable,
			message: "most speakers no longer report the node as unreachable",
		})
	}

	return out
}
