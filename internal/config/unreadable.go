package config

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// MarkUnreadable is in memory only: package k8s sets it on objects of our group of which it could not
// read every field, with one "FIELD: ERROR" on each line. These fields have their zero values.
const MarkUnreadable = "holdfast.dev/unreadable"

// Unreadable returns the fields that could not be read, such as spec.quota, each with the error.
func Unreadable(o metav1.Object) map[string]string {
	text := o.GetAnnotations()[MarkUnreadable]
	if text == "" {
		return nil
	}
	out := map[string]string{}
	for _, line := range strings.Split(text, "\n") {
		field, err, _ := strings.Cut(line, ": ")
		out[field] = err
	}
	return out
}

// reportUnreadable reports the fields that could not be read, with what follows from that, and returns them.
func reportUnreadable(r *report, object lb.Object, o metav1.Object, effect string) map[string]string {
	fields := Unreadable(o)
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		r.fault(object, lb.Unreadable, "%s cannot be read (%s): %s; write it again, or remove it", field, fields[field], effect)
	}
	return fields
}

// inForce returns the objects to be compiled. One with an unreadable field is left out, unless the field is
// named here or in the status: without a selector it would do more than its author meant. All nodes decide
// that alike, whatever they read before.
func inForce[T metav1.Object](r *report, kind string, objects []T, harmless ...string) []T {
	stays := func(field string) bool {
		return slices.Contains(harmless, field) || strings.HasPrefix(field, "status")
	}
	var out []T
	for _, o := range objects {
		whole, effect := true, "the default stands"
		for field := range Unreadable(o) {
			if !stays(field) {
				whole, effect = false, "the object is not in force"
			}
		}
		reportUnreadable(r, lb.Object{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}, o, effect)
		if whole {
			out = append(out, o)
		}
	}
	return out
}

// freeze makes a pool with unreadable fields keep what it gave and give nothing new. If its source ranges are
// among these fields, nobody reaches its addresses.
func freeze(r *report, object lb.Object, o *v1beta1.IPAddressPool, p *lb.Pool) {
	fields := reportUnreadable(r, object, o, "the pool keeps what it gave, and gives no new addresses")
	p.Unreadable = len(fields) > 0
	_, spec := fields["spec"]
	_, ranges := fields["spec.sourceRanges"]
	p.Restricted = p.Restricted || spec || ranges
}

// CheckSpeakerState returns the Problems of a SpeakerState.
func CheckSpeakerState(o *v1beta1.SpeakerState) []lb.Problem {
	var r report
	reportUnreadable(&r, lb.Object{Kind: KindSpeakerState, Name: o.Name}, o, "it does not count; the node's speaker writes it")
	return r.problems
}
