package config

import (
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// compileTerms reads the terms on which a pool assigns addresses, and the records
// in its status and its memory. Unreadable records are not ours and are ignored.
func compileTerms(r *report, object lb.Object, o *v1beta1.IPAddressPool, m *v1beta1.PoolMemory) lb.PoolTerms {
	t := lb.PoolTerms{
		Internal: o.Spec.Scope == v1beta1.ScopeInternal,
		Classes:  o.Spec.Classes,
		Tags:     o.Spec.Tags,
		Aliases:  o.Spec.Aliases,
		Reset:    o.Spec.UndeclaredPorts == v1beta1.UndeclaredReset,
	}
	if len(o.Spec.SourceRanges) > 0 {
		allowed := readSources(o.Spec.SourceRanges)
		allowed.report(r, object, "spec.sourceRanges")
		t.Restricted, t.SourceRanges = true, allowed.prefixes
	}
	if q := o.Spec.Quota; q != nil && q.PerNamespace != nil {
		t.Quota = map[lb.Family]int{}
		if n := q.PerNamespace.IPv4; n != nil {
			t.Quota[lb.IPv4] = int(*n)
		}
		if n := q.PerNamespace.IPv6; n != nil {
			t.Quota[lb.IPv6] = int(*n)
		}
	}
	if s := o.Spec.Sharing; s != nil {
		t.ShareAcross, t.MaxServices = s.Scope == v1beta1.ShareCluster, int(s.MaxServices)
	}
	if d := o.Spec.ReuseDelay; d != nil {
		t.ReuseDelay = d.Duration
	}
	remember(&t, o, m)
	for _, is := range o.Status.Retained {
		if a, err := parseAddr(is.Address); err == nil {
			t.Retained = append(t.Retained, lb.Retention{Address: a, Holder: parseKey(is.Service), Since: is.Since.Time})
		}
	}
	return t
}

func parseKey(text string) lb.Key {
	namespace, name, _ := strings.Cut(text, "/")
	return lb.Key{Namespace: namespace, Name: name}
}

// memories returns the memories by the names of their pools.
func memories(objects []*v1beta1.PoolMemory) map[string]*v1beta1.PoolMemory {
	out := make(map[string]*v1beta1.PoolMemory, len(objects))
	for _, m := range objects {
		out[m.Name] = m
	}
	return out
}

// remember reads the releases that a pool records. The memory of an earlier pool of the same name does not count.
func remember(t *lb.PoolTerms, o *v1beta1.IPAddressPool, m *v1beta1.PoolMemory) {
	if m == nil || !metav1.IsControlledBy(m, o) {
		return
	}
	t.ReleasedForgotten = m.Status.Forgotten
	for _, was := range m.Status.Released {
		if a, err := parseAddr(was.Address); err == nil {
			t.Released = append(t.Released, lb.Release{Address: a, Time: was.Time.Time, Holder: parseKey(was.Service), UID: was.UID})
		}
	}
}
