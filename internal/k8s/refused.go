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
	// Condition explains what was refused. It is on the Service if the update names a type for it.
	Condition metav1.Condition
}

// Error returns the message of the condition.
func (r *Refused) Error() string { return r.Condition.Message }

// updatePart is a part of an update that the API server accepts or refuses on its own.
type updatePart struct {
	name string
	ServiceUpdate
}

// parts splits the update. The addresses come first, together with their record and the host names beside them. New
// finalizers belong to that part. Finalizers that are only removed come last, because the object may be gone then.
func (u ServiceUpdate) parts() []updatePart {
	holder := ServiceUpdate{
		Finalizers:  u.Finalizers,
		Annotations: u.only(v1beta1.AnnotationAssigned),
	}
	first, others := u.splitRecord()
	addsFinalizer := slices.Contains(slices.Collect(maps.Values(u.Finalizers)), true)
	if addsFinalizer {
		first.Finalizers = holder.Finalizers
		first.Annotations = holder.Annotations
	}

	var out []updatePart
	add := func(name string, p ServiceUpdate) {
		out = append(out, updatePart{name: name, ServiceUpdate: p})
	}
	add("the addresses", first)

	for _, c := range others {
		add("condition "+c.Type, ServiceUpdate{Conditions: []metav1.Condition{c}})
	}

	add("the removal of conditions", ServiceUpdate{RemoveConditions: u.RemoveConditions})
	for _, name := range slices.Sorted(maps.Keys(u.Annotations)) {
		isElsewhere := name == v1beta1.AnnotationAssigned || name == v1beta1.AnnotationHostnameShown
		if !isElsewhere {
			add("annotation "+name, ServiceUpdate{Annotations: u.only(name)})
		}
	}

	add("the host name", ServiceUpdate{
		SetAddresses:   u.SetAddresses,
		Addresses:      u.Addresses,
		Proxied:        u.Proxied,
		ProxyMode:      u.ProxyMode,
		Hostname:       u.Hostname,
		FormerHostname: u.FormerHostname,
		Annotations:    u.only(v1beta1.AnnotationHostnameShown),
	})
	if !addsFinalizer {
		add("the finalizers", holder)
	}

	return out
}

// splitRecord returns the update of the addresses with their record, and the other conditions.
func (u ServiceUpdate) splitRecord() (first ServiceUpdate, others []metav1.Condition) {
	first = ServiceUpdate{
		SetAddresses: u.SetAddresses,
		Addresses:    u.Addresses,
		Proxied:      u.Proxied,
		ProxyMode:    u.ProxyMode,
	}
	for _, c := range u.Conditions {
		if c.Type == v1beta1.ConditionAddressRecord {
			first.Conditions = append(first.Conditions, c)
		} else {
			others = append(others, c)
		}
	}

	for _, t := range u.RemoveConditions {
		if t == v1beta1.ConditionAddressRecord {
			first.RemoveConditions = append(first.RemoveConditions, t)
		}
	}

	return first, others
}

// only returns the annotation of this name, if the update has it.
func (u ServiceUpdate) only(name string) map[string]string {
	value, ok := u.Annotations[name]
	if !ok {
		return nil
	}
	return map[string]string{name: value}
}

// writeParts writes the update part by part, so that the API server can refuse some parts and accept the others. If it
// refuses the addresses, nothing else is written, since the rest would not be true. At last it writes the condition
// that reports the refusals.
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
			last = after
			u.Service = after
		}

		return err
	}

	for i, p := range u.parts() {
		err := write(p.ServiceUpdate)
		if err == nil {
			continue
		}
		if !apierrors.IsInvalid(err) {
			return last, err
		}

		refusals = append(refusals, "the API server refuses "+p.name+": "+err.Error())
		if i == 0 {
			break
		}
	}
	if len(refusals) == 0 {
		return last, nil
	}

	condition := metav1.Condition{
		Type:    u.Refusal,
		Status:  metav1.ConditionFalse,
		Reason:  string(lb.WriteRefused),
		Message: lb.WithRemedies(strings.Join(refusals, "; "), lb.WriteRefused),
	}
	if u.Refusal != "" {
		err := write(ServiceUpdate{Conditions: []metav1.Condition{condition}})
		if err != nil {
			return last, err
		}
	}

	return last, &Refused{Condition: condition}
}
