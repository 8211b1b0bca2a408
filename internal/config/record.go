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
	c := metav1.Condition{
		Type:    v1beta1.ConditionAddressRecord,
		Status:  metav1.ConditionTrue,
		Reason:  "Recorded",
		Message: recordText(uid, origins),
	}
	return c, len(origins) > 0
}

// recordText returns "uid=UID", then "ADDRESS=POOL" or "ADDRESS=POOL#TERMS" for each address, separated by spaces.
func recordText(uid types.UID, origins lb.Origins) string {
	text := append(make([]byte, 0, 128), "uid="...)
	text = append(text, uid...)

	for _, o := range origins[:min(len(origins), maxOrigins)] {
		text = append(text, ' ')
		text = o.Address.AppendTo(text)
		text = append(text, '=')
		text = append(text, o.Pool...)
		if o.Terms != "" {
			text = append(text, '#')
			text = append(text, o.Terms...)
		}
	}

	return string(text)
}

// readRecord returns the record among the conditions of an object. A record with another UID belongs to another object,
// whose status was restored or copied. A text that Record would not write is not ours.
func readRecord(uid types.UID, conditions []metav1.Condition) lb.Origins {
	c := apimeta.FindStatusCondition(conditions, v1beta1.ConditionAddressRecord)
	if c == nil {
		return nil
	}

	owner, rest, _ := strings.Cut(c.Message, " ")
	if owner != "uid="+string(uid) {
		return nil
	}

	items := strings.SplitN(rest, " ", maxOrigins+1)
	out := make(lb.Origins, 0, len(items))
	for _, item := range items {
		address, origin, _ := strings.Cut(item, "=")
		pool, terms, _ := strings.Cut(origin, "#")
		a, err := parseAddr(address)
		if err != nil {
			return nil
		}

		out = append(out, lb.Origin{
			Address: a,
			Pool:    pool,
			Terms:   terms,
		})
	}

	if recordText(uid, out) != c.Message {
		return nil
	}

	return out
}

// assignedFor is the first word of holdfast.dev/assigned: "for=NAMESPACE/NAME" names the object that the annotation
// belongs to.
const assignedFor = "for"

// maxAssigned bounds the length of the annotation. Two addresses with their pools need less than half of it.
const maxAssigned = 4096

// Assigned returns the value of the annotation holdfast.dev/assigned, which preserves in backups the addresses that an
// object holds or waits for; "" if there are none.
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

// recall returns the first address of each family in the annotation; the object requests these addresses again. It
// returns nothing if the annotation names another object, since then it came with a copied manifest. Invalid items are
// not ours and are ignored.
func recall(o metav1.Object) lb.Origins {
	_, isCopy := copyOf(o)
	if isCopy {
		return nil
	}

	var out lb.Origins
	for item := range assignedItems(o) {
		address, pool, ok := strings.Cut(item, "=")
		if !ok || address == assignedFor {
			continue // parseAddr would allocate an error
		}

		a, err := parseAddr(address)
		if err != nil {
			continue
		}

		isSameFamily := func(b lb.Origin) bool { return b.Address.BitLen() == a.BitLen() }
		if !slices.ContainsFunc(out, isSameFamily) {
			out = append(out, lb.Origin{Address: a, Pool: pool})
		}
	}

	return out
}

// copyOf reports whether an object was made from the manifest of another one, and returns that one as "namespace/name".
// The annotation names the object and not its UID, because a restored object has another UID.
func copyOf(o metav1.Object) (original string, isCopy bool) {
	for item := range assignedItems(o) {
		word, value, _ := strings.Cut(item, "=")
		if word == assignedFor {
			return value, value != KeyOf(o).String()
		}
	}

	return "", false
}

// Records returns the annotations in which other programs look for the addresses that a Service holds; "" removes an
// annotation.
func (opt Options) Records(s *corev1.Service, loadBalancerID string, holds []netip.Addr) map[string]string {
	if opt.OpenStack.Ignore {
		return nil
	}
	_, isCopy := copyOf(s)
	return opt.OpenStack.Records(s.Annotations, string(s.UID), isCopy, loadBalancerID, holds)
}

// Cleared returns the annotations to remove from a Service that has none of our addresses. others are its addresses
// from other load balancers.
func (opt Options) Cleared(s *corev1.Service, others []netip.Addr) map[string]string {
	shown, _ := netip.ParseAddr(s.Annotations[openstack.Address])
	if opt.OpenStack.Ignore || slices.Contains(others, shown) {
		return nil
	}
	return opt.OpenStack.Records(s.Annotations, string(s.UID), false, "", nil)
}

// AnnouncedBy returns the node that announced each address, as a speaker recorded it in the status of the Service;
// users cannot write there. An administrator who migrates the Service from another load balancer writes only the name
// of a node, for all addresses.
func AnnouncedBy(o *corev1.Service) lb.ByNode {
	c := apimeta.FindStatusCondition(o.Status.Conditions, v1beta1.ConditionAnnouncers)
	if c == nil {
		return nil
	}

	text := c.Message
	if !strings.Contains(text, "=") {
		text = ""
		for _, in := range o.Status.LoadBalancer.Ingress {
			text += in.IP + "=" + c.Message + ","
		}
	}

	var out lb.ByNode
	for item := range strings.SplitSeq(text, ",") {
		address, node, ok := strings.Cut(item, "=")
		a, err := parseAddr(address)
		if !ok || err != nil {
			continue
		}
		if out.Of(a) == "" {
			out = append(out, lb.OnNode{Address: a, Node: node})
		}
	}

	return out
}
