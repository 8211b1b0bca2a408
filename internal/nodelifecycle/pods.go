package nodelifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// withdraw marks the pods on dead nodes not ready. It first records that a node is dead, so that the next leader can
// undo the withdrawal.
func (c *Controller) withdraw(ctx context.Context, s runInput, d decision) error {
	if len(d.withdraw) == 0 {
		return nil
	}

	var errs []error
	recorded := map[string]bool{}
	for _, node := range d.withdraw {
		err := c.record(ctx, s, unreachable(node, d.votes[node], s.speakers))
		errs = append(errs, err)
		recorded[node] = err == nil
	}

	// An endpoint on a node that is only suspected does not count as the remaining endpoint of a Service.
	dead := maps.Clone(s.notReady)
	for _, node := range slices.Concat(d.withdraw, s.suspects()) {
		dead[node] = true
	}

	pods := toWithdraw(c.cluster.EndpointSlices(), c.isServed(), dead)
	pods = slices.DeleteFunc(pods, func(p backingPod) bool {
		handledAt := c.leader.handled[p.uid].handledAt
		wasJustHandled := s.at.Sub(handledAt) <= propagationTime
		return !recorded[p.node] || wasJustHandled
	})

	withdrawPod := func(ctx context.Context, p backingPod) (bool, error) {
		message := fmt.Sprintf("the speakers of most nodes cannot reach node %s: "+
			"Holdfast takes the pod out until one of them does", p.node)
		return c.cluster.WithdrawPod(ctx, p.namespace, p.name, p.uid, p.node, message)
	}
	written, _, err := c.writePods(ctx, pods, withdrawPod)
	c.withdrawn.Add(int64(len(written)))
	c.sendServiceEvents(written, false, lb.EndpointsWithdrawn,
		"%d endpoints on nodes that most speakers cannot reach are marked not ready")

	return errors.Join(append(errs, err)...)
}

// restore undoes withdraw on nodes that are alive after all.
func (c *Controller) restore(ctx context.Context, s runInput, d decision) error {
	if len(d.restore) == 0 {
		return nil
	}

	var errs []error
	endpoints := c.cluster.EndpointSlices()
	for _, node := range d.restore {
		errs = append(errs, c.restoreNode(ctx, s, endpoints, node))
	}

	return errors.Join(errs...)
}

// restoreNode restores the pods of one node. Once all of them are handled, it records that the node is reachable.
func (c *Controller) restoreNode(
	ctx context.Context,
	s runInput,
	endpoints []*discoveryv1.EndpointSlice,
	node string,
) error {
	pods := map[types.UID]backingPod{}
	for _, p := range toRestore(endpoints, node) {
		pods[p.uid] = p
	}
	// The EndpointSlices may not show the last writes yet.
	for uid, p := range c.leader.handled {
		if p.node == node {
			pods[uid] = p
		}
	}

	restorePod := func(ctx context.Context, p backingPod) (bool, error) {
		return c.cluster.RestorePod(ctx, p.namespace, p.name, p.uid)
	}
	toWrite := slices.Collect(maps.Values(pods))
	written, isComplete, err := c.writePods(ctx, toWrite, restorePod)
	c.restored.Add(int64(len(written)))
	c.sendServiceEvents(written, true, lb.EndpointsRestored, "%d endpoints that were marked not ready may serve again")

	if !isComplete {
		return err
	}

	return c.record(ctx, s, nodeCondition{
		node:    node,
		reason:  lb.NodeReachable,
		message: "the node is alive: its pods are restored",
	})
}

// writePods calls write for each pod, and returns the pods that it changed. isComplete reports whether every pod that
// still exists is handled: no write failed, and none was overtaken by another writer.
func (c *Controller) writePods(
	ctx context.Context,
	pods []backingPod,
	write func(context.Context, backingPod) (wrote bool, err error),
) (written []backingPod, isComplete bool, err error) {
	var mu sync.Mutex
	isComplete = true

	_, err = c.cluster.Each(ctx, len(pods), func(ctx context.Context, i int) error {
		p := pods[i]
		wrote, err := write(ctx, p)

		mu.Lock()
		defer mu.Unlock()
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			isComplete = false
		default:
			p.handledAt = time.Now()
			c.leader.handled[p.uid] = p
			if wrote {
				written = append(written, p)
			}
		}

		return err
	})
	return written, isComplete, err
}

// record writes a condition to the node's SpeakerState and, if that changed it, sends an Event on the Node. It returns
// an error if the node has no SpeakerState, because it never had a speaker.
func (c *Controller) record(ctx context.Context, s runInput, condition nodeCondition) error {
	node := condition.node
	if condition.isFinal() {
		maps.DeleteFunc(c.leader.handled, func(_ types.UID, p backingPod) bool {
			return p.node == node
		})
	}

	i := slices.IndexFunc(s.speakerStates, func(o *v1beta1.SpeakerState) bool {
		return o.Name == node
	})
	if i < 0 {
		return fmt.Errorf("node %s has no SpeakerState to record on that it is unreachable", node)
	}

	status := metav1.ConditionFalse
	if condition.reason == lb.NodeUnreachable {
		status = metav1.ConditionTrue
	}

	want := metav1.Condition{
		Type:    v1beta1.ConditionEndpointsWithdrawn,
		Status:  status,
		Reason:  string(condition.reason),
		Message: lb.WithRemedies(condition.message, condition.reason),
	}
	hasChanged, err := c.cluster.UpdateSpeakerState(ctx, s.speakerStates[i], []metav1.Condition{want})
	if err != nil || !hasChanged {
		return err
	}

	text := cmp.Or(condition.event, condition.message)
	event := lb.WithRemedies(text, condition.reason)
	for _, n := range s.nodes {
		if n.Name == node {
			c.cluster.Event(lb.Object{Kind: "Node", Name: node}, n.UID, condition.isFinal(), condition.reason, event)
		}
	}

	c.log.Info("unreachable node", "member", node, "reason", condition.reason, "message", event)
	return nil
}

// isServed returns a function that reports whether clients outside of the cluster may be using a Service. The function
// reads each Service once.
func (c *Controller) isServed() func(lb.Key) bool {
	services := c.cluster.Services()
	hasAddress := func(key lb.Key) bool {
		o := services.Of(key)
		if o == nil || !c.serves(o) {
			return false
		}
		return len(o.Status.LoadBalancer.Ingress) > 0
	}

	results := map[lb.Key]bool{}
	return func(key lb.Key) bool {
		result, isRead := results[key]
		if !isRead {
			result = hasAddress(key)
			results[key] = result
		}

		return result
	}
}

// sendServiceEvents sends one Event on each served Service of the pods. format has a verb for the number of its pods.
func (c *Controller) sendServiceEvents(pods []backingPod, isGood bool, reason lb.Reason, format string) {
	counts := map[lb.Key]int{}
	for _, p := range pods {
		for _, service := range p.services {
			counts[service]++
		}
	}
	if len(counts) == 0 {
		return
	}

	c.log.Info("endpoints", "reason", reason, "pods", len(pods), "services", len(counts))
	services := c.cluster.Services()
	for _, key := range slices.SortedFunc(maps.Keys(counts), lb.Key.Compare) {
		o := services.Of(key)
		if o == nil || !c.serves(o) {
			continue
		}

		object := lb.Object{
			Kind:      "Service",
			Namespace: key.Namespace,
			Name:      key.Name,
		}
		message := fmt.Sprintf(format, counts[key])
		c.cluster.Event(object, o.UID, isGood, reason, message)
	}
}
