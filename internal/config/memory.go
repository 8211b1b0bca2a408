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

// remember reads the releases that a pool records. The memory of an earlier pool of the same name does not count. What
// an earlier version of Holdfast recorded in the pool's status counts too, until the controller has moved it.
func remember(t *lb.PoolTerms, o *v1beta1.IPAddressPool, m *v1beta1.PoolMemory) {
	t.ReleasedForgotten = o.Status.ReleasedForgotten
	if m != nil && metav1.IsControlledBy(m, o) {
		t.Released = releases(m.Status.Released)
		t.ReleasedForgotten = max(t.ReleasedForgotten, m.Status.Forgotten)
	}
	t.Released = append(t.Released, releases(o.Status.Released)...)
}

func releases(list []v1beta1.ReleasedAddress) []lb.Release {
	var out []lb.Release
	for _, was := range list {
		if a, err := parseAddr(was.Address); err == nil {
			out = append(out, lb.Release{Address: a, Time: was.Time.Time, Holder: parseKey(was.Service), UID: was.UID})
		}
	}
	return out
}
