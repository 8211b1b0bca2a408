package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/quorum"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// withdraw marks the pods on dead nodes. That a node is dead is recorded first, so
// that whoever leads next can take back what this one did.
func (w *withdrawer) withdraw(ctx context.Context, c scene) error {
	if len(c.Withdraw) == 0 {
		return nil
	}
	var errs []error
	recorded, dead := map[string]bool{}, maps.Clone(c.Given)
	for _, node := range slices.Concat(c.Withdraw, c.Spared) {
		dead[node] = true
	}
	for _, node := range c.Withdraw {
		_, err := w.record(ctx, c, node, metav1.ConditionTrue, lb.NodeUnreachable,
			"most speakers cannot reach the node, so ready pods on it that back Services are marked not ready",
			fmt.Sprintf("the speakers of %d of %d nodes cannot reach it: ready pods on it that back Services are marked not ready", c.Against[node], c.Speakers))
		errs = append(errs, err)
		recorded[node] = err == nil
	}
	var pods []backend
	for _, b := range toWithdraw(c.endpoints, w.served(c), dead) {
		if recorded[b.node] && c.Now.Sub(w.written[b.uid].at) > settleTime {
			pods = append(pods, b)
		}
	}
	done, _, err := w.write(ctx, pods, func(ctx context.Context, b backend) (bool, error) {
		return w.cluster.WithdrawPod(ctx, b.namespace, b.name, b.uid, b.node,
			fmt.Sprintf("the speakers of most nodes cannot reach node %s: Holdfast takes the pod out until one of them does", b.node))
	})
	w.withdrawn.Add(int64(len(done)))
	w.sayServices(c, done, false, lb.EndpointsWithdrawn, "%d endpoints on nodes that most speakers cannot reach are marked not ready")
	return errors.Join(append(errs, err)...)
}

// served are the Services that an outside client may be using.
func (w *withdrawer) served(c scene) map[lb.Key]bool {
	out := map[lb.Key]bool{}
	for _, s := range c.objects.Services {
		if w.options.Serves(s) && len(s.Status.LoadBalancer.Ingress) > 0 {
			out[lb.Key{Namespace: s.Namespace, Name: s.Name}] = true
		}
	}
	return out
}

// write writes to pods and returns those that it changed. Those that were looked at
// are remembered; all says that none was overtaken and has to be looked at again.
func (w *withdrawer) write(ctx context.Context, pods []backend, one func(context.Context, backend) (bool, error)) (done []backend, all bool, err error) {
	var mu sync.Mutex
	all = true
	err = each(ctx, w.overtook, pods, func(ctx context.Context, b backend) error {
		wrote, err := one(ctx, b)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			all = false
		default:
			w.written[b.uid] = written{b, time.Now()}
			if wrote {
				done = append(done, b)
			}
		}
		return err
	})
	return done, all, err
}

// overtook logs what is looked at again in the next run, which comes soon while a node is spoken against.
func (w *withdrawer) overtook(err error) { w.log.Debug("overtaken, will look again", "error", err) }

// restore takes back what was written to the pods of nodes that live after all.
func (w *withdrawer) restore(ctx context.Context, c scene) error {
	var errs []error
	for _, node := range c.Restore {
		pods := map[types.UID]backend{}
		for _, b := range toRestore(c.endpoints, node) {
			pods[b.uid] = b
		}
		// The EndpointSlices may not show yet what was written last.
		for uid, b := range w.written {
			if b.node == node {
				pods[uid] = b.backend
			}
		}
		done, all, err := w.write(ctx, slices.Collect(maps.Values(pods)), func(ctx context.Context, b backend) (bool, error) {
			return w.cluster.RestorePod(ctx, b.namespace, b.name, b.uid)
		})
		w.restored.Add(int64(len(done)))
		w.sayServices(c, done, true, lb.EndpointsRestored, "%d endpoints that were marked not ready may serve again")
		if all {
			err = w.settle(ctx, c, node, lb.NodeReachable, "the node lives: what was written to its pods is taken back")
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// settle ends what was decided about a node.
func (w *withdrawer) settle(ctx context.Context, c scene, node string, reason lb.Reason, message string) error {
	maps.DeleteFunc(w.written, func(_ types.UID, b written) bool { return b.node == node })
	_, err := w.record(ctx, c, node, metav1.ConditionFalse, reason, message, message)
	return err
}

// tell says what became of nodes whose pods are not written to.
func (w *withdrawer) tell(ctx context.Context, c scene) error {
	var errs []error
	for _, node := range c.Forget {
		errs = append(errs, w.settle(ctx, c, node, lb.NodeGivenUp, "Kubernetes itself has given the node up: its pods are left to the node lifecycle controller"))
	}
	for _, p := range quorum.Problems(c.State, c.Decision) {
		_, err := w.record(ctx, c, p.Object.Name, metav1.ConditionFalse, p.Reason, p.Message, p.Message)
		errs = append(errs, err)
	}
	for node, s := range c.states {
		m := meta.FindStatusCondition(s.Status.Conditions, v1beta1.ConditionEndpointsWithdrawn)
		if m != nil && m.Reason == string(lb.TooManyUnreachable) && !slices.Contains(c.Spared, node) && w.doomed[node].IsZero() {
			errs = append(errs, w.settle(ctx, c, node, lb.NodeReachable, "most speakers do not call the node unreachable any more"))
		}
	}
	return errors.Join(errs...)
}

// record writes the condition on a node's SpeakerState and, if that changed it,
// says it on the Node. A node without a SpeakerState never had a speaker.
func (w *withdrawer) record(ctx context.Context, c scene, node string, status metav1.ConditionStatus, reason lb.Reason, message, event string) (bool, error) {
	state := c.states[node]
	if state == nil {
		return false, fmt.Errorf("node %s has no SpeakerState to record on that it is unreachable", node)
	}
	wrote, err := w.cluster.UpdateSpeakerState(ctx, state, []metav1.Condition{{
		Type: v1beta1.ConditionEndpointsWithdrawn, Status: status, Reason: string(reason), Message: bounded(message),
	}})
	if err != nil || !wrote {
		return false, err
	}
	good := reason == lb.NodeReachable || reason == lb.NodeGivenUp
	for _, n := range c.objects.Nodes {
		if n.Name == node {
			w.cluster.Event(lb.Object{Kind: "Node", Name: node}, n.UID, good, reason, event)
		}
	}
	w.log.Info("unreachable node", "member", node, "reason", reason, "message", event)
	return true, nil
}

// sayServices sends one Event on each Service whose endpoints were written to.
func (w *withdrawer) sayServices(c scene, pods []backend, good bool, reason lb.Reason, format string) {
	counts := map[lb.Key]int{}
	for _, b := range pods {
		for _, service := range b.services {
			counts[service]++
		}
	}
	if len(counts) == 0 {
		return
	}
	w.log.Info("endpoints", "reason", reason, "pods", len(pods), "services", len(counts))
	for _, s := range c.objects.Services {
		if n := counts[lb.Key{Namespace: s.Namespace, Name: s.Name}]; n > 0 && w.options.Serves(s) {
			w.cluster.Event(lb.Object{Kind: config.KindService, Namespace: s.Namespace, Name: s.Name}, s.UID, good, reason, fmt.Sprintf(format, n))
		}
	}
}
