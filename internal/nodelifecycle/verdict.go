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

// verdict on a node, for the condition of its SpeakerState and an Event on the Node.
type verdict struct {
	node    string
	reason  lb.Reason
	message string
	// event says more than message, "" the same: the condition must not change with
	// every figure.
	event string
}

// closed reports whether the node needs nothing more.
func (v verdict) closed() bool { return v.reason == lb.NodeReachable || v.reason == lb.NodeGivenUp }

func unreachable(node string, votes, speakers int) verdict {
	return verdict{
		node:    node,
		reason:  lb.NodeUnreachable,
		message: "most speakers cannot reach the node, so ready pods on it that back Services are marked not ready",
		event: fmt.Sprintf(
			"the speakers of %d of %d nodes cannot reach it: ready pods on it that back Services are marked not ready",
			votes,
			speakers,
		),
	}
}

// tooMany is the verdict on one of the spared nodes.
func tooMany(node string, spared []string, limit int) verdict {
	const why = "than the limit of %d lets us call dead: their endpoints stay"
	return verdict{
		node:    node,
		reason:  lb.TooManyUnreachable,
		message: fmt.Sprintf("most speakers cannot reach the node, and with it more at once "+why, limit),
		event: fmt.Sprintf(
			"most speakers cannot reach %s, which is more at once "+why,
			strings.Join(spared, ", "),
			limit,
		),
	}
}

// otherVerdicts returns the verdicts on nodes whose pods are not written to: those that
// Kubernetes has given up, those that are spared, and those that were and are neither
// spared nor pending now.
func (s snapshot) otherVerdicts(d decision, pending map[string]time.Time) []verdict {
	var out []verdict
	for _, node := range d.handOver {
		out = append(
			out,
			verdict{
				node:   node,
				reason: lb.NodeGivenUp,
				message: "Kubernetes itself has given the node up: its pods are left to the node " +
					"lifecycle controller",
			},
		)
	}
	for _, node := range d.spared {
		out = append(out, tooMany(node, d.spared, s.limit.Of(s.speakers)))
	}
	for _, o := range s.speakerStates {
		node, c := o.Name, meta.FindStatusCondition(o.Status.Conditions, v1beta1.ConditionEndpointsWithdrawn)
		if c != nil &&
			c.Reason == string(lb.TooManyUnreachable) &&
			!slices.Contains(d.spared, node) &&
			pending[node].IsZero() {
			out = append(
				out,
				verdict{
					node:    node,
					reason:  lb.NodeReachable,
					message: "most speakers do not call the node unreachable any more",
				},
			)
		}
	}
	return out
}
