package main

import (
	"context"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// memory is one pool with what it is to remember.
type memory struct {
	pool *v1beta1.IPAddressPool
	// have is the memory as read, nil if there is none.
	have *v1beta1.PoolMemory
	want v1beta1.PoolMemoryStatus
	// stands: it was written, or nothing was to be written.
	stands bool
}

// memories returns what pools must remember before the holders of this decision lose their addresses, and
// the others. Such a release has the time of the decision and comes first.
func (d *decision) memories() (giving, others []*memory) {
	usages, have := map[string]ipam.Usage{}, map[string]*v1beta1.PoolMemory{}
	for _, u := range d.result.Pools {
		usages[u.Pool] = u
	}
	for _, m := range d.objects.PoolMemories {
		have[m.Name] = m
	}
	for _, p := range d.objects.Pools {
		u := usages[p.Name]
		m := &memory{pool: p, have: have[p.Name], want: remembers(u)}
		if len(u.Released) > 0 && u.Released[0].Time.Equal(d.state.Now) {
			giving = append(giving, m)
		} else {
			others = append(others, m)
		}
	}
	return giving, others
}

func remembers(u ipam.Usage) v1beta1.PoolMemoryStatus {
	out := v1beta1.PoolMemoryStatus{Forgotten: u.ReleasedForgotten}
	for _, r := range u.Released {
		out.Released = append(out.Released, v1beta1.ReleasedAddress{
			Address: r.Address.String(), Time: metav1.NewTime(r.Time).Rfc3339Copy(), Service: r.Holder.String(), UID: r.UID,
		})
	}
	return out
}

// writeMemories writes what pools remember, and reports whether all of it stands.
func (s *syncer) writeMemories(ctx context.Context, d *decision, memories []*memory) (all bool, err error) {
	err = each(ctx, d, s.log, memories, func(ctx context.Context, m *memory) error {
		err := s.cluster.UpdateMemory(ctx, m.pool, m.have, m.want)
		m.stands = err == nil
		return err
	})
	all = true
	for _, m := range memories {
		d.recorded[m.pool.UID] = m.stands
		all = all && m.stands
	}
	return all, err
}

// loses reports whether the status or the record shows an address that the Service must give up.
func (w serviceWrite) loses() bool {
	for a := range w.recorded {
		if !slices.Contains(w.assignment.Addresses, a) {
			return true
		}
	}
	return slices.ContainsFunc(w.service.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool {
		a, err := netip.ParseAddr(in.IP)
		return err == nil && !slices.Contains(w.assignment.Addresses, a)
	})
}

// loses reports whether the status shows an address that the FloatingIP must give up.
func (w floatingWrite) loses() bool {
	held := texts(w.owned.Addresses)
	return slices.ContainsFunc(w.object.Status.Addresses, func(a string) bool { return !slices.Contains(held, a) })
}
