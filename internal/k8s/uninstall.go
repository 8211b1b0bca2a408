package k8s

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
)

// finalizerPrefix begins all our finalizers.
const finalizerPrefix = "holdfast.dev/"

// Uninstall prepares the cluster for the removal of Holdfast. It sets the mark that daemons obey. Then it waits until
// every speaker has withdrawn its announcements and is no longer ready, or until timeout has passed. At last it removes
// our finalizers, so that no object waits for a controller that no longer runs.
//
// Addresses stay in the Services' status for a later installation. If the DaemonSet is gone already, Uninstall logs the
// nodes on which the packet filter stays.
func (c Clients) Uninstall(
	ctx context.Context,
	log *slog.Logger,
	namespace, daemonSet string,
	timeout time.Duration,
) error {
	isMarked, err := c.mark(ctx, namespace, daemonSet)
	if err != nil {
		return err
	}

	var logErr error
	if isMarked {
		c.waitWithdrawn(ctx, log, namespace, daemonSet, timeout)
	} else {
		logErr = c.logFilters(ctx, log)
	}

	return errors.Join(
		logErr,
		c.clearOwn(ctx, "ipaddresspools"),
		c.clearOwn(ctx, "floatingips"),
		c.clearServices(ctx),
		c.deleteAll(ctx, speakerStates),
		c.deleteAll(ctx, "egressallocations"),
	)
}

// waitWithdrawn waits until no speaker is ready, which means that each has withdrawn its announcements.
func (c Clients) waitWithdrawn(
	ctx context.Context,
	log *slog.Logger,
	namespace, daemonSet string,
	timeout time.Duration,
) {
	log.Info("waiting for the speakers to withdraw", "daemonset", daemonSet, "timeout", timeout.String())
	isDone := func(ctx context.Context) (bool, error) {
		ds, err := c.kube.daemonSets(namespace).Get(ctx, daemonSet, metav1.GetOptions{})
		if err != nil {
			return apierrors.IsNotFound(err), nil // any other error is transient
		}
		return ds.Status.NumberReady == 0, nil
	}

	err := wait.PollUntilContextTimeout(ctx, markInterval, timeout, true, isDone)
	if err != nil {
		log.Warn("some speakers did not confirm that they have withdrawn; going on", "error", err)
	}
}

// logFilters logs the nodes that had a speaker: their packet filters are still there.
func (c Clients) logFilters(ctx context.Context, log *slog.Logger) error {
	states, err := c.list(ctx, speakerStates)
	if err != nil || len(states) == 0 {
		return err
	}

	var nodes []string
	for _, s := range states {
		nodes = append(nodes, s.Name)
	}

	log.Warn(
		"the speakers are gone without removing their packet filter: remove the nftables tables inet holdfast, "+
			"inet holdfast-headstart, inet holdfast-proxy, ip and ip6 holdfast-relay, and ip, ip6 and bridge "+
			"holdfast-egress there, and the IPv4 and IPv6 routing rules of priority 32700 and 32701",
		"nodes", nodes,
	)
	return nil
}

// deleteAll deletes all objects of a kind that has no meaning without speakers.
func (c Clients) deleteAll(ctx context.Context, resource string) error {
	err := c.holdfast.Delete().Resource(resource).Do(ctx).Error()
	if ignoreNotFound(err) != nil {
		return fmt.Errorf("delete %s: %w", resource, err)
	}
	return nil
}

// mark sets the uninstall mark on the DaemonSet. It reports false if there is no DaemonSet.
func (c Clients) mark(ctx context.Context, namespace, daemonSet string) (bool, error) {
	annotations := map[string]string{UninstallMark: "true"}
	metadata := map[string]any{"annotations": annotations}
	patch := asJSON(map[string]any{"metadata": metadata})
	_, err := c.kube.daemonSets(namespace).Patch(ctx, daemonSet, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("mark daemonset %s: %w", daemonSet, err)
	}

	return true, nil
}

// list returns the objects of one of our kinds; none if its CRD is gone.
func (c Clients) list(ctx context.Context, resource string) ([]metav1.PartialObjectMetadata, error) {
	raw, err := c.holdfast.Get().
		Resource(resource).
		Do(ctx).
		Raw()
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list %s: %w", resource, err)
	}

	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("read the list of %s: %w", resource, err)
	}
	return list.Items, nil
}

// clearOwn removes our finalizers from the objects of one of our kinds.
func (c Clients) clearOwn(ctx context.Context, resource string) error {
	objects, err := c.list(ctx, resource)
	if err != nil {
		return err
	}

	return each(objects, func(o *metav1.PartialObjectMetadata) error {
		patch := withoutFinalizers(o, nil, false)
		if patch == nil {
			return nil
		}

		err := c.holdfast.Patch(types.MergePatchType).
			NamespaceIfScoped(o.Namespace, o.Namespace != "").
			Resource(resource).
			Name(o.Name).
			Body(patch).
			Do(ctx).
			Error()
		return ignoreNotFound(err)
	})
}

// maxConcurrentClears is the number of objects that are cleared at the same time.
const maxConcurrentClears = 32

// each calls fn with every object, with several at the same time, and returns all errors.
func each[T any](objects []T, fn func(*T) error) error {
	errs := make([]error, len(objects))
	workqueue.ParallelizeUntil(context.Background(), maxConcurrentClears, len(objects), func(i int) {
		errs[i] = fn(&objects[i])
	})
	return errors.Join(errs...)
}

// clearServices removes our finalizers from all Services.
func (c Clients) clearServices(ctx context.Context) error {
	var services corev1.ServiceList
	err := c.kube.core.Get().
		Resource("services").
		Do(ctx).
		Into(&services)
	if err != nil {
		return fmt.Errorf("list services: %w", err)
	}

	return each(services.Items, func(s *corev1.Service) error {
		// The annotation with the addresses stays for a later installation. Annotations that another load balancer
		// would read are removed. The standard finalizer of a released Service is ours while no other load balancer
		// serves it.
		isAlone := Released(s) && len(s.Status.LoadBalancer.Ingress) == 0
		cleared := config.Options{}.Cleared(s, nil)
		patch := withoutFinalizers(s, cleared, isAlone)
		if patch == nil {
			return nil
		}

		_, err := c.kube.services(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return ignoreNotFound(err)
	})
}

// withoutFinalizers returns the patch that removes Holdfast's finalizers and the cleared annotations; nil if there are
// no such finalizers. The standard finalizer is removed together with ours, or if isAlone is set.
func withoutFinalizers(o metav1.Object, cleared map[string]string, isAlone bool) []byte {
	have := o.GetFinalizers()
	removesStandard := isAlone || slices.Contains(have, v1beta1.FinalizerAddress)
	rest := slices.DeleteFunc(slices.Clone(have), func(f string) bool {
		isOurs := strings.HasPrefix(f, finalizerPrefix)
		return isOurs || removesStandard && f == StandardFinalizer
	})
	if len(rest) == len(have) {
		return nil
	}

	metadata := map[string]any{
		"finalizers":      rest,
		"resourceVersion": o.GetResourceVersion(),
	}
	if len(cleared) > 0 {
		annotations := map[string]any{}
		for name := range cleared {
			annotations[name] = nil
		}
		metadata["annotations"] = annotations
	}

	return asJSON(map[string]any{"metadata": metadata})
}

// ignoreNotFound returns the error, or nil if an object was not found.
func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
