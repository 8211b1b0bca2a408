package main

import (
	"context"
	"net/netip"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// memory is one pool with what it is to remember.
type memory struct {
	pool *v1beta1.IPAddressPool
	// have is the memory as read, nil if there is none.
	have *v1beta1.PoolMemory
	want v1beta1.PoolMemoryStatus
	// released are the releases of this decision.
	released []lb.Release
	// stands: it was written, or nothing was to be written.
	stands bool
}

// memories returns what pools must remember before the holders of this decision lose their addresses, and
// the others. Such a release has the time of the decision.
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
		for _, r := range u.Released {
			if r.Time.Equal(d.state.Now) {
				m.released = append(m.released, r)
			}
		}
		if len(m.released) > 0 {
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
			Address: r.Address.String(), Time: v1beta1.NewTime(r.Time), Service: r.Holder.String(), UID: r.UID,
		})
	}
	return out
}

// writeMemories writes what pools remember, and notes in d which releases are not recorded.
func (s *syncer) writeMemories(ctx context.Context, d *decision, memories []*memory) error {
	err := each(ctx, d, s.cluster, memories, func(ctx context.Context, m *memory) error {
		err := s.cluster.UpdateMemory(ctx, m.pool, m.have, m.want)
		m.stands = err == nil
		return err
	})
	for _, m := range memories {
		for _, r := range m.released {
			d.unrecorded[r.Address] = !m.stands
		}
	}
	return err
}

// waits reports whether an object waits to give up its address.
func (d *decision) waits(a netip.Addr) bool { return d.unrecorded[a] }
