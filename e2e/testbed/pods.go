package testbed

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Ready reports whether a pod is ready and not about to end.
func Ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}

// Pods lists the pods of a component of Holdfast, by the name of its workload.
func (b *Bed) Pods(ctx context.Context, workload string) ([]corev1.Pod, error) {
	component := map[string]string{Controller: "controller", Speaker: "speaker", Proxy: "proxy"}[workload]
	list, err := b.Kube.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=" + component,
	})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", workload, err)
	}
	return list.Items, nil
}

// WaitReady waits until every replica and every node's speaker is ready.
func (b *Bed) WaitReady(ctx context.Context) error {
	return Until(ctx, 2*time.Minute, "Holdfast to be ready", func(ctx context.Context) error {
		d, err := b.Kube.AppsV1().Deployments(Namespace).Get(ctx, Controller, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := d.Status; s.ObservedGeneration < d.Generation ||
			s.AvailableReplicas < *d.Spec.Replicas ||
			s.UnavailableReplicas > 0 {
			return fmt.Errorf(
				"%d of %d replicas of %s are available",
				s.AvailableReplicas,
				*d.Spec.Replicas,
				Controller,
			)
		}
		ds, err := b.Kube.AppsV1().DaemonSets(Namespace).Get(ctx, Speaker, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := ds.Status; s.ObservedGeneration < ds.Generation ||
			s.NumberReady < s.DesiredNumberScheduled ||
			s.DesiredNumberScheduled == 0 {
			return fmt.Errorf("%d of %d pods of %s are ready", s.NumberReady, s.DesiredNumberScheduled, Speaker)
		}
		return nil
	})
}

// WaitSpeaker waits until a node's speaker is ready and, unless uid is empty, is another pod than uid.
func (b *Bed) WaitSpeaker(ctx context.Context, node, uid string) error {
	return Until(ctx, time.Minute, "the speaker of "+node, func(ctx context.Context) error {
		pods, err := b.Pods(ctx, Speaker)
		if err != nil {
			return err
		}
		for i := range pods {
			if p := &pods[i]; p.Spec.NodeName == node && Ready(p) && string(p.UID) != uid {
				return nil
			}
		}
		return fmt.Errorf("no ready speaker on %s", node)
	})
}

// WaitNode waits until a node has reported itself Ready since a time, and accepts pods. The last
// status of a dead node says Ready for tens of seconds.
func (b *Bed) WaitNode(ctx context.Context, node string, since time.Time) error {
	return Until(ctx, 2*time.Minute, "node "+node, func(ctx context.Context) error {
		lease, err := b.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Before(&metav1.MicroTime{Time: since}) {
			return fmt.Errorf("its lease was not renewed")
		}
		n, err := b.Kube.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			return fmt.Errorf("it is not Ready")
		}
		// The scheduler reads the taints, which change a little later.
		if slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
		}) {
			return fmt.Errorf("it is tainted as not Ready")
		}
		return b.startedSince(ctx, node, since)
	})
}

// startedSince checks that every container on a node was started after a time: until the
// kubelet updates their status, pods from before the restart count as ready.
func (b *Bed) startedSince(ctx context.Context, node string, since time.Time) error {
	pods, err := b.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return fmt.Errorf("list pods of %s: %w", node, err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, c := range p.Status.ContainerStatuses {
			// The API's times are of whole seconds.
			if c.State.Running == nil || c.State.Running.StartedAt.Time.Before(since.Truncate(time.Second)) {
				return fmt.Errorf("container %s of pod %s was not started", c.Name, p.Name)
			}
		}
	}
	return nil
}

// KillSpeaker kills a node's speaker with SIGKILL, as the kernel's OOM killer does. It
// returns a function that waits until the kubelet has restarted the speaker.
func (b *Bed) KillSpeaker(ctx context.Context, node string) (wait func() error, err error) {
	before, err := b.speakerRestarts(ctx, node)
	if err != nil {
		return nil, err
	}
	if _, err := b.On(ctx, node, "pkill", "-KILL", "-x", "speaker"); err != nil {
		return nil, err
	}
	return func() error {
		err := Until(ctx, time.Minute, "another start of the speaker of "+node, func(ctx context.Context) error {
			restarts, err := b.speakerRestarts(ctx, node)
			if err == nil && restarts == before {
				err = fmt.Errorf("it was started again %d times", restarts)
			}
			return err
		})
		if err != nil {
			return err
		}
		return b.WaitSpeaker(ctx, node, "")
	}, nil
}

func (b *Bed) speakerRestarts(ctx context.Context, node string) (int32, error) {
	pods, err := b.Pods(ctx, Speaker)
	if err != nil {
		return 0, err
	}
	for _, p := range pods {
		if p.Spec.NodeName == node && p.DeletionTimestamp == nil && len(p.Status.ContainerStatuses) > 0 {
			return p.Status.ContainerStatuses[0].RestartCount, nil
		}
	}
	return 0, fmt.Errorf("no speaker on %s", node)
}

// ReplaceSpeaker deletes the pod of a node's speaker and waits for the next one.
func (b *Bed) ReplaceSpeaker(ctx context.Context, node string) error {
	pods, err := b.Pods(ctx, Speaker)
	if err != nil {
		return err
	}
	for i := range pods {
		if p := &pods[i]; p.Spec.NodeName == node && p.DeletionTimestamp == nil {
			if err := b.Kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil {
				return fmt.Errorf("delete the speaker of %s: %w", node, err)
			}
			return b.WaitSpeaker(ctx, node, string(p.UID))
		}
	}
	return fmt.Errorf("no speaker on %s", node)
}
