package main

import (
	"context"
	"net/netip"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// memoryWrite is one PoolMemory with its desired status.
type memoryWrite struct {
	pool *v1beta1.IPAddressPool
	// have is the PoolMemory as read; nil if there is none.
	have *v1beta1.PoolMemory
	want v1beta1.PoolMemoryStatus
	// released are the releases of this run.
	released []lb.Release
	// isRecorded reports whether the releases are recorded: the write succeeded, or there was nothing to write.
	isRecorded bool
}

// memoryWrites returns the PoolMemories to write before holders lose their addresses, and the others. Releases of this
// run have the time of the run.
func (d *syncRun) memoryWrites() (releasing, others []*memoryWrite) {
	usages := d.usages()
	have := map[string]*v1beta1.PoolMemory{}
	for _, m := range d.objects.PoolMemories {
		have[m.Name] = m
	}

	for _, p := range d.objects.Pools {
		u := usages[p.Name]
		w := &memoryWrite{
			pool: p,
			have: have[p.Name],
			want: memoryStatus(u),
		}
		for _, r := range u.Released {
			if r.Time.Equal(d.state.Now) {
				w.released = append(w.released, r)
			}
		}

		if len(w.released) > 0 {
			releasing = append(releasing, w)
		} else {
			others = append(others, w)
		}
	}

	return releasing, others
}

// memoryStatus returns the desired status of a PoolMemory.
func memoryStatus(u ipam.Usage) v1beta1.PoolMemoryStatus {
	out := v1beta1.PoolMemoryStatus{Forgotten: u.ReleasedForgotten}
	for _, r := range u.Released {
		out.Released = append(out.Released, v1beta1.ReleasedAddress{
			Address: r.Address.String(),
			Time:    v1beta1.NewTime(r.Time),
			Service: r.Holder.String(),
			UID:     r.UID,
		})
	}

	return out
}

// writeMemories writes PoolMemories, and records in d which releases are not recorded.
func (s *syncer) writeMemories(ctx context.Context, d *syncRun, writes []*memoryWrite) error {
	err := each(ctx, d, s.cluster, writes, func(ctx context.Context, w *memoryWrite) error {
		err := s.cluster.UpdateMemory(ctx, w.pool, w.have, w.want)
		w.isRecorded = err == nil
		return err
	})

	for _, w := range writes {
		for _, r := range w.released {
			d.unrecorded[r.Address] = !w.isRecorded
		}
	}

	return err
}

// mustWait reports whether a holder must keep the address until its release is recorded.
func (d *syncRun) mustWait(a netip.Addr) bool {
	return d.unrecorded[a]
}
