package k8s

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// StandardFinalizer is the finalizer that Kubernetes documents for type LoadBalancer. It is set together with
// Holdfast's own, because another controller may remove the standard one.
const StandardFinalizer = "service.kubernetes.io/load-balancer-cleanup"

// ServiceUpdate is the desired state of a Service; fields that it does not name stay as they are.
type ServiceUpdate struct {
	// Service is the Service as it was read. The write fails if it changed since.
	Service *corev1.Service
	// SetAddresses replaces the addresses of status.loadBalancer by Addresses.
	SetAddresses bool
	Addresses    []netip.Addr
	// Hostname is shown beside each address.
	Hostname string
	// FormerHostname is the host name that we wrote there before.
	FormerHostname string
	// Proxied reports whether proxies serve the addresses.
	Proxied bool
	// ProxyMode makes pods and nodes use the proxies too (ipMode Proxy). So does an address that has this mode already,
	// if Proxied is set. Otherwise the ipMode in the status stays.
	ProxyMode bool
	// Conditions are conditions of ours, without times.
	Conditions []metav1.Condition
	// RemoveConditions are the types of conditions to remove.
	RemoveConditions []string
	// Annotations are annotations of ours. An empty value removes an annotation.
	Annotations map[string]string
	// Finalizers are the finalizers to add (true) or remove (false); others stay.
	Finalizers map[string]bool
	// Refusal is the type of the condition that reports which part of the update the API server refuses. The condition
	// exists only while a part is refused. "" is none.
	Refusal string
}

// UpdateService writes the difference between the actual and the desired state of a Service. It returns the resulting
// Service; nil if nothing was written.
//
// A Refused error means that the API server calls a part invalid; the other parts are written. An Overtaken error means
// that the Service changed meanwhile: decide again soon, since the watch kicks only for changes that matter to a
// decision.
func (k *Cluster) UpdateService(ctx context.Context, u ServiceUpdate) (after *corev1.Service, err error) {
	body := u.encode()
	if body == nil {
		return nil, nil
	}

	what := "service " + config.KeyOf(u.Service).String()
	err = k.attempts.attempt(ctx, what, body, func() (err error) {
		after, err = k.patchService(ctx, u, body)
		if apierrors.IsInvalid(err) {
			after, err = k.writeParts(ctx, u)
		}
		return err
	})
	return after, err
}

// patchService sends a patch of a Service, and overlays and returns the result.
func (k *Cluster) patchService(ctx context.Context, u ServiceUpdate, body []byte) (*corev1.Service, error) {
	s := u.Service
	after, err := k.clients.kube.services(s.Namespace).
		Patch(ctx, s.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil {
		k.services.recordUnanswered(s, u.gains(), err)
		return nil, fmt.Errorf("patch status of service %s: %w", config.KeyOf(s), err)
	}

	_, err = trim(after)
	k.services.recordWrite(after)
	return after, err
}

// encode returns the patch, or nil if nothing differs.
func (u ServiceUpdate) encode() []byte {
	patch := u.patch(metav1.Now())
	if patch == nil {
		return nil
	}
	return asJSON(patch)
}

// gains returns the addresses that the update adds to the status.
func (u ServiceUpdate) gains() []netip.Addr {
	if !u.SetAddresses {
		return nil
	}

	isShown := func(a netip.Addr) bool {
		text := a.String()
		return slices.ContainsFunc(u.Service.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool {
			return in.IP == text
		})
	}
	return slices.DeleteFunc(slices.Clone(u.Addresses), isShown)
}

// Loses reports whether the update takes an address from the status and adds none.
func (u ServiceUpdate) Loses() bool {
	if !u.SetAddresses || len(u.gains()) > 0 {
		return false
	}

	return slices.ContainsFunc(u.Service.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool {
		a, err := netip.ParseAddr(in.IP)
		return err == nil && !slices.Contains(u.Addresses, a)
	})
}

// IsDone reports whether the Service already is as desired.
func (u ServiceUpdate) IsDone() bool {
	return u.patch(metav1.Time{}) == nil
}

// Overtaken reports whether a write failed only because the object was changed, created or deleted meanwhile.
func Overtaken(err error) bool {
	return apierrors.IsConflict(err) ||
		apierrors.IsAlreadyExists(err) ||
		apierrors.IsNotFound(err)
}

// patch returns a strategic merge patch of metadata and status, or nil if nothing differs. The resource version makes
// the API server reject it if another client wrote meanwhile, since ingress is one atomic list.
func (u ServiceUpdate) patch(at metav1.Time) map[string]any {
	metadata := map[string]any{}
	status := map[string]any{}
	annotations := u.annotations()
	if len(annotations) > 0 {
		metadata["annotations"] = annotations
	}

	add, remove := u.finalizers()
	if len(add) > 0 {
		metadata["finalizers"] = add
	}

	if len(remove) > 0 {
		metadata["$deleteFromPrimitiveList/finalizers"] = remove
	}

	ingress, isChanged := u.ingress()
	if u.SetAddresses && isChanged {
		status["loadBalancer"] = map[string]any{"ingress": ingress}
	}

	conditions := u.conditions(at)
	if len(conditions) > 0 {
		status["conditions"] = conditions
	}
	if len(metadata) == 0 && len(status) == 0 {
		return nil
	}

	metadata["resourceVersion"] = u.Service.ResourceVersion
	patch := map[string]any{"metadata": metadata}
	if len(status) > 0 {
		patch["status"] = status
	}

	return patch
}

// annotations returns the entries of the patch for the annotations; nil removes an annotation.
func (u ServiceUpdate) annotations() map[string]any {
	out := map[string]any{}
	for name, want := range u.Annotations {
		have, exists := u.Service.Annotations[name]
		switch {
		case want == "" && exists:
			out[name] = nil
		case want != "" && want != have:
			out[name] = want
		}
	}

	return out
}

// finalizers returns the finalizers to add and to remove. None can be added to a Service that is being deleted: the API
// server would reject the whole patch.
func (u ServiceUpdate) finalizers() (add, remove []string) {
	for _, f := range slices.Sorted(maps.Keys(u.Finalizers)) {
		isWanted := u.Finalizers[f]
		exists := slices.Contains(u.Service.Finalizers, f)
		mayAdd := !exists && u.Service.DeletionTimestamp == nil
		switch {
		case isWanted && mayAdd:
			add = append(add, f)
		case !isWanted && exists:
			remove = append(remove, f)
		}
	}

	return add, remove
}

// conditions returns the entries of the patch for the conditions.
func (u ServiceUpdate) conditions(at metav1.Time) []any {
	var out []any
	have := u.Service.Status.Conditions
	for _, c := range Changed(have, u.Conditions, u.Service.Generation, at) {
		out = append(out, c)
	}

	obsolete := slices.Concat(u.RemoveConditions, []string{u.Refusal})
	for _, t := range obsolete {
		if meta.FindStatusCondition(have, t) != nil {
			out = append(out, map[string]any{"$patch": "delete", "type": t})
		}
	}

	return out
}

// Changed returns the wanted conditions that differ from the present ones, or were decided for another generation:
// kubectl wait ignores a condition of an earlier generation. Generation 0 is the same as any other. A condition whose
// status does not change keeps its lastTransitionTime.
func Changed(have, want []metav1.Condition, generation int64, at metav1.Time) []metav1.Condition {
	var out []metav1.Condition
	for _, c := range want {
		c.LastTransitionTime = at
		c.ObservedGeneration = generation
		before := meta.FindStatusCondition(have, c.Type)
		if before == nil {
			out = append(out, c)
			continue
		}

		isSame := before.Status == c.Status &&
			before.Reason == c.Reason &&
			before.Message == c.Message
		isCurrent := generation == 0 || before.ObservedGeneration == generation
		if isSame && isCurrent {
			continue
		}

		if before.Status == c.Status {
			c.LastTransitionTime = before.LastTransitionTime
		}

		out = append(out, c)
	}

	return out
}

// ingress returns the desired ingress list, and reports whether it differs from the actual one. Fields of an address
// that others wrote (ipMode, ports, a hostname) stay, and so do entries with only a hostname.
func (u ServiceUpdate) ingress() ([]corev1.LoadBalancerIngress, bool) {
	have := u.Service.Status.LoadBalancer.Ingress
	wasProxied := meta.IsStatusConditionTrue(u.Service.Status.Conditions, v1beta1.ConditionProxied)
	leavesProxies := wasProxied && !u.Proxied
	wantsProxyMode := u.ProxyMode || u.Proxied && slices.ContainsFunc(have, hasProxyMode)

	out := []corev1.LoadBalancerIngress{}
	for _, a := range u.Addresses {
		entry := corev1.LoadBalancerIngress{IP: a.String()}
		i := slices.IndexFunc(have, func(in corev1.LoadBalancerIngress) bool {
			b, err := netip.ParseAddr(in.IP)
			return err == nil && a == b
		})
		if i >= 0 {
			entry = have[i]
		}

		switch {
		case wantsProxyMode:
			entry.IPMode = new(corev1.LoadBalancerIPModeProxy)
		case leavesProxies && hasProxyMode(entry):
			entry.IPMode = nil
		}

		if u.Hostname != "" || entry.Hostname == u.FormerHostname {
			entry.Hostname = u.Hostname
		}

		out = append(out, entry)
	}

	for _, in := range have {
		if in.IP == "" {
			out = append(out, in)
		}
	}

	isSame := slices.EqualFunc(have, out, func(a, b corev1.LoadBalancerIngress) bool {
		return a.IP == b.IP &&
			a.Hostname == b.Hostname &&
			hasProxyMode(a) == hasProxyMode(b)
	})
	return out, !isSame
}

// HasProxyMode reports whether an address of a Service has ipMode Proxy.
func HasProxyMode(s *corev1.Service) bool {
	return slices.ContainsFunc(s.Status.LoadBalancer.Ingress, hasProxyMode)
}

// hasProxyMode reports whether an address has ipMode Proxy.
func hasProxyMode(in corev1.LoadBalancerIngress) bool {
	return in.IPMode != nil && *in.IPMode == corev1.LoadBalancerIPModeProxy
}
