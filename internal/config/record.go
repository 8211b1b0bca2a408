package config

import (
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// maxOrigins bounds a record: an object holds one address of each family, and another writer may have replaced as many.
const maxOrigins = 8

// Record returns the condition that proves which addresses an object with this UID holds; false if it holds none.
func Record(uid types.UID, origins lb.Origins) (metav1.Condition, bool) {
	return metav1.Condition{
		Type:    v1beta1.ConditionAddressRecord,
		Status:  metav1.ConditionTrue,
		Reason:  "Recorded",
		Message: recordText(uid, origins),
	}, len(origins) > 0
}

// recordText is "uid=UID", then "ADDRESS=POOL" or "ADDRESS=POOL#TERMS" of each address.
func recordText(uid types.UID, origins lb.Origins) string {
	text := append(make([]byte, 0, 128), "uid="...)
	text = append(text, uid...)
	for _, o := range origins[:min(len(origins), maxOrigins)] {
		text = append(o.Address.AppendTo(append(text, ' ')), '=')
		text = append(text, o.Pool...)
		if o.Terms != "" {
			text = append(append(text, '#'), o.Terms...)
		}
	}
	return string(text)
}

// readRecord returns the record among the conditions of an object. One of another UID is of another object, whose
// status was restored or copied. One that Record would not write is not ours.
func readRecord(uid types.UID, conditions []metav1.Condition) lb.Origins {
	c := apimeta.FindStatusCondition(conditions, v1beta1.ConditionAddressRecord)
	if c == nil {
		return nil
	}
	of, rest, _ := strings.Cut(c.Message, " ")
	if of != "uid="+string(uid) {
		return nil
	}
	items := strings.SplitN(rest, " ", maxOrigins+1)
	out := make(lb.Origins, 0, len(items))
	for _, item := range items {
		address, from, _ := strings.Cut(item, "=")
		pool, terms, _ := strings.Cut(from, "#")
		a, err := parseAddr(address)
		if err != nil {
			return nil
		}
		out = append(out, lb.Origin{Address: a, Pool: pool, Terms: terms})
	}
	if recordText(uid, out) != c.Message {
		return nil
	}
	return out
}

// assignedFor is the first word of holdfast.dev/assigned: "for=NAMESPACE/NAME" names the object that the annotation is
// of.
const assignedFor = "for"

// maxAssigned bounds the annotation that is read: two addresses with their pools are shorter by half.
const maxAssigned = 4096

// Assigned returns the annotation holdfast.dev/assigned, which carries the addresses that an object holds, or waits
// for, through a backup; "" if there are none.
func Assigned(of lb.Key, origins lb.Origins) string {
	if len(origins) == 0 {
		return ""
	}
	parts := []string{assignedFor + "=" + of.String()}
	for _, o := range origins {
		parts = append(parts, o.Address.String()+"="+o.Pool)
	}
	return strings.Join(parts, ",")
}

// assignedItems yields the items of the annotation.
func assignedItems(o metav1.Object) iter.Seq[string] {
	text := o.GetAnnotations()[v1beta1.AnnotationAssigned]
	if len(text) > maxAssigned {
		text = ""
	}
	return strings.SplitSeq(text, ",")
}

// recall reads from the annotation the first address of each family, which the object asks back. An annotation that
// names another object came with a copied manifest. Unreadable items are not ours and are ignored.
func recall(o metav1.Object) lb.Origins {
	if _, copied := copyOf(o); copied {
		return nil
	}
	var out lb.Origins
	for item := range assignedItems(o) {
		address, pool, found := strings.Cut(item, "=")
		if !found || address == assignedFor {
			continue // not an address, for which parseAddr would make an error
		}
		a, err := parseAddr(address)
		same := func(b lb.Origin) bool { return b.Address.BitLen() == a.BitLen() }
		if err == nil && !slices.ContainsFunc(out, same) {
			out = append(out, lb.Origin{Address: a, Pool: pool})
		}
	}
	return out
}

// copyOf returns the original from whose manifest an object was copied, as "namespace/name". The annotation names the
// object and not its UID, because a restored object has another UID.
func copyOf(o metav1.Object) (original string, copied bool) {
	for item := range assignedItems(o) {
		if word, value, _ := strings.Cut(item, "="); word == assignedFor {
			return value, value != KeyOf(o).String()
		}
	}
	return "", false
}

// Records returns the annotations by which other programs read what a Service holds; "" removes one.
func (opt Options) Records(s *corev1.Service, loadBalancerID string, holds []netip.Addr) map[string]string {
	if opt.OpenStack.Ignore {
		return nil
	}
	_, copied := copyOf(s)
	return opt.OpenStack.Records(s.Annotations, string(s.UID), copied, loadBalancerID, holds)
}

// Cleared returns those to remove from a Service that has none of our addresses, but maybe others.
func (opt Options) Cleared(s *corev1.Service, others []netip.Addr) map[string]string {
	shown, _ := netip.ParseAddr(s.Annotations[openstack.Address])
	if opt.OpenStack.Ignore || slices.Contains(others, shown) {
		return nil
	}
	return opt.OpenStack.Records(s.Annotations, string(s.UID), false, "", nil)
}

// AnnouncedBy reads the node that announced each address, as a speaker recorded it in the status of the Service, where
// no user writes. An administrator who moves the Service from another load balancer writes the name of a node alone,
// for all its addresses.
func AnnouncedBy(o *corev1.Service) lb.ByNode {
	c := apimeta.FindStatusCondition(o.Status.Conditions, v1beta1.ConditionAnnouncers)
	if c == nil {
		return nil
	}
	var out lb.ByNode
	text := c.Message
	if !strings.Contains(text, "=") {
		text = ""
		for _, in := range o.Status.LoadBalancer.Ingress {
			text += in.IP + "=" + c.Message + ","
		}
	}
	for item := range strings.SplitSeq(text, ",") {
		address, node, found := strings.Cut(item, "=")
		a, err := parseAddr(address)
		if found && err == nil && out.Of(a) == "" {
			out = append(out, lb.OnNode{Address: a, Node: node})
		}
	}
	return out
}
