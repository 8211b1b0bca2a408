package config

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

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
