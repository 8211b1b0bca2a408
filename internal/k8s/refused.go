package k8s

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Refused is the error of an update of which the API server, or an admission policy, calls a part invalid.
type Refused struct {
	// Condition says what was refused. It is on the Service if the update names a type for it.
	Condition metav1.Condition
}

func (r *Refused) Error() string { return r.Condition.Message }

// part is what the API server accepts or refuses on its own.
type part struct {
	name string
	ServiceUpdate
}

// parts splits the update. The addresses come first, with what records them and with the host names that stand beside
// them already. Finalizers that are added come with them, and those that only go come last: their object may be gone
// then.
func (u ServiceUpdate) parts() []part {
	isRecord := func(c metav1.Condition) bool { return c.Type == v1beta1.ConditionAddressRecord }
	isRecordType := func(t string) bool { return t == v1beta1.ConditionAddressRecord }
	first := ServiceUpdate{
		SetAddresses: u.SetAddresses,
		Addresses:    u.Addresses,
		Proxied:      u.Proxied,
		ProxyMode:    u.ProxyMode,
		Conditions: slices.DeleteFunc(
			slices.Clone(u.Conditions),
			func(c metav1.Condition) bool { return !isRecord(c) },
		),
		RemoveConditions: slices.DeleteFunc(
			slices.Clone(u.RemoveConditions),
			func(t string) bool { return !isRecordType(t) },
		),
	}
	holder := ServiceUpdate{Finalizers: u.Finalizers, Annotations: u.only(v1beta1.AnnotationAssigned)}
	holds := slices.Contains(slices.Collect(maps.Values(u.Finalizers)), true)
	if holds {
		first.Finalizers, first.Annotations = holder.Finalizers, holder.Annotations
	}

	rest := slices.DeleteFunc(slices.Clone(u.Conditions), isRecord)
	out := []part{{"the addresses", first}}
	for _, c := range rest {
		out = append(out, part{"condition " + c.Type, ServiceUpdate{Conditions: []metav1.Condition{c}}})
	}
	out = append(out, part{"the removal of conditions", ServiceUpdate{RemoveConditions: u.RemoveConditions}})
	for _, name := range slices.Sorted(maps.Keys(u.Annotations)) {
		if name != v1beta1.AnnotationAssigned && name != v1beta1.AnnotationHostnameShown {
			out = append(out, part{"annotation " + name, ServiceUpdate{Annotations: u.only(name)}})
		}
	}
	out = append(out, part{"the host name", ServiceUpdate{
		SetAddresses: u.SetAddresses, Addresses: u.Addresses, Proxied: u.Proxied, ProxyMode: u.ProxyMode,
		Hostname: u.Hostname, FormerHostname: u.FormerHostname, Annotations: u.only(v1beta1.AnnotationHostnameShown),
	}})
	if !holds {
		out = append(out, part{"the finalizers", holder})
	}
	return out
}

// only returns the annotation of this name, if the update has it.
func (u ServiceUpdate) only(name string) map[string]string {
	value, stands := u.Annotations[name]
	if !stands {
		return nil
	}
	return map[string]string{name: value}
}

// writeParts writes the update part by part, so that a part that is refused does not keep the others from being
// written, and last the condition that tells. Without its addresses the rest of an update would not be true.
func (k *Cluster) writeParts(ctx context.Context, u ServiceUpdate) (last *corev1.Service, err error) {
	var refusals []string
	write := func(p ServiceUpdate) error {
		p.Service = u.Service
		body := p.encode()
		if body == nil {
			return nil
		}
		after, err := k.patchService(ctx, p, body)
		if after != nil {
			u.Service, last = after, after
		}
		return err
	}
	for i, p := range u.parts() {
		err := write(p.ServiceUpdate)
		if err != nil && !apierrors.IsInvalid(err) {
			return last, err
		}
		if err != nil {
			refusals = append(refusals, "the API server refuses "+p.name+": "+err.Error())
		}
		if err != nil && i == 0 {
			break
		}
	}
	if len(refusals) == 0 {
		return last, nil
	}
	refused := &Refused{metav1.Condition{
		Type: u.Refusal, Status: metav1.ConditionFalse, Reason: string(lb.WriteRefused),
		Message: lb.WithRemedies(strings.Join(refusals, "; "), lb.WriteRefused),
	}}
	if u.Refusal != "" {
		if err := write(ServiceUpdate{Conditions: []metav1.Condition{refused.Condition}}); err != nil {
			return last, err
		}
	}
	return last, refused
}
