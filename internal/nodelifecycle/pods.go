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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// withdraw marks the pods on dead nodes. It records first that a node is dead, so that
// the next leader can undo what this one did.
func (c *Controller) withdraw(ctx context.Context, s snapshot, d decision) error {
	if len(d.withdraw) == 0 {
		return nil
	}
	var errs []error
	recorded, dead := map[string]bool{}, maps.Clone(s.notReady)
	// An endpoint on a node that is only suspected does not count as left.
	for _, node := range slices.Concat(d.withdraw, s.suspects()) {
		dead[node] = true
	}
	for _, node := range d.withdraw {
		err := c.record(ctx, s, unreachable(node, d.votes[node], s.speakers))
		errs = append(errs, err)
		recorded[node] = err == nil
	}
	pods := slices.DeleteFunc(toWithdraw(c.cluster.EndpointSlices(), c.served(), dead), func(p pod) bool {
		return !recorded[p.node] || s.now.Sub(c.memory.handled[p.uid].handled) <= propagationTime
	})
	done, _, err := c.write(ctx, pods, func(ctx context.Context, p pod) (bool, error) {
		return c.cluster.WithdrawPod(
			ctx,
			p.namespace,
			p.name,
			p.uid,
			p.node,
			fmt.Sprintf(
				"the speakers of most nodes cannot reach node %s: Holdfast takes the pod out until one of them does",
				p.node,
			),
		)
	})
	c.withdrawn.Add(int64(len(done)))
	c.serviceEvents(
		done,
		false,
		lb.EndpointsWithdrawn,
		"%d endpoints on nodes that most speakers cannot reach are marked not ready",
	)
	return errors.Join(append(errs, err)...)
}

// restore undoes what was written to the pods of nodes that live after all.
func (c *Controller) restore(ctx context.Context, s snapshot, d decision) error {
	if len(d.restore) == 0 {
		return nil
	}
	var errs []error
	endpoints := c.cluster.EndpointSlices()
	for _, node := range d.restore {
		pods := map[types.UID]pod{}
		for _, p := range toRestore(endpoints, node) {
			pods[p.uid] = p
		}
		// The EndpointSlices may not show yet what was written last.
		for uid, p := range c.memory.handled {
			if p.node == node {
				pods[uid] = p
			}
		}
		done, all, err := c.write(
			ctx,
			slices.Collect(maps.Values(pods)),
			func(ctx context.Context, p pod) (bool, error) {
				return c.cluster.RestorePod(ctx, p.namespace, p.name, p.uid)
			},
		)
		c.restored.Add(int64(len(done)))
		c.serviceEvents(done, true, lb.EndpointsRestored, "%d endpoints that were marked not ready may serve again")
		if all {
			err = c.record(
				ctx,
				s,
				verdict{
					node:    node,
					reason:  lb.NodeReachable,
					message: "the node lives: what was written to its pods is taken back",
				},
			)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// write writes to pods and returns those that it changed, and whether every pod that
// still exists is handled: none was overtaken, and no write failed.
func (c *Controller) write(
	ctx context.Context,
	pods []pod,
	one func(context.Context, pod) (bool, error),
) (done []pod, all bool, err error) {
	var mu sync.Mutex
	all = true
	_, err = c.cluster.Each(ctx, len(pods), func(ctx context.Context, i int) error {
		p := pods[i]
		wrote, err := one(ctx, p)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			all = false
		default:
			p.handled = time.Now()
			c.memory.handled[p.uid] = p
			if wrote {
				done = append(done, p)
			}
		}
		return err
	})
	return done, all, err
}

// record writes a verdict into the node's SpeakerState and, if that changed it, sends an
// Event on the Node. A node without a SpeakerState never had a speaker.
func (c *Controller) record(ctx context.Context, s snapshot, v verdict) error {
	if v.closed() {
		maps.DeleteFunc(c.memory.handled, func(_ types.UID, p pod) bool { return p.node == v.node })
	}
	i := slices.IndexFunc(s.speakerStates, func(o *v1beta1.SpeakerState) bool { return o.Name == v.node })
	if i < 0 {
		return fmt.Errorf("node %s has no SpeakerState to record on that it is unreachable", v.node)
	}
	status := metav1.ConditionFalse
	if v.reason == lb.NodeUnreachable {
		status = metav1.ConditionTrue
	}
	wrote, err := c.cluster.UpdateSpeakerState(ctx, s.speakerStates[i], []metav1.Condition{{
		Type: v1beta1.ConditionEndpointsWithdrawn, Status: status, Reason: string(v.reason),
		Message: lb.WithRemedies(v.message, v.reason),
	}})
	if err != nil || !wrote {
		return err
	}
	event := lb.WithRemedies(cmp.Or(v.event, v.message), v.reason)
	for _, n := range s.nodes {
		if n.Name == v.node {
			c.cluster.Event(lb.Object{Kind: "Node", Name: v.node}, n.UID, v.closed(), v.reason, event)
		}
	}
	c.log.Info("unreachable node", "member", v.node, "reason", v.reason, "message", event)
	return nil
}

// served returns a function that reports whether an outside client may be using a Service. It reads each once.
func (c *Controller) served() func(lb.Key) bool {
	service, known := c.cluster.Services(), map[lb.Key]bool{}
	return func(key lb.Key) bool {
		served, asked := known[key]
		if !asked {
			o := service(key)
			served = o != nil && c.serves(o) && len(o.Status.LoadBalancer.Ingress) > 0
			known[key] = served
		}
		return served
	}
}

// serviceEvents sends one Event on each Service whose endpoints were written to.
func (c *Controller) serviceEvents(pods []pod, good bool, reason lb.Reason, format string) {
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
	service := c.cluster.Services()
	for _, key := range slices.SortedFunc(maps.Keys(counts), lb.Key.Compare) {
		if o := service(key); o != nil && c.serves(o) {
			c.cluster.Event(
				lb.Object{Kind: "Service", Namespace: key.Namespace, Name: key.Name},
				o.UID,
				good,
				reason,
				fmt.Sprintf(format, counts[key]),
			)
		}
	}
}
