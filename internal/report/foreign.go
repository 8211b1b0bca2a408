package report

import (
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/link"
	"github.com/holdfast-lb/holdfast/internal/plan"
)

// foreignInterval is the minimum time between two reads of the kernel's neighbour table.
const foreignInterval = 10 * time.Second

// foreign finds the machines whose addresses a pool covers by mistake. One goroutine uses it.
type foreign struct {
	readAt time.Time
	found  []lb.Neighbour
}

// find returns the machines. It reads the neighbour table again after foreignInterval.
func (f *foreign) find(c *Config, last *Standing) []lb.Neighbour {
	speakers := c.Speakers()
	if last == nil || speakers == nil || time.Since(f.readAt) < foreignInterval {
		return f.found
	}

	f.readAt = time.Now()
	found, err := link.Neighbours(c.Links(), func(a netip.Addr) bool {
		return isUnassigned(last.Plan, a)
	})
	if err != nil {
		c.Log.Debug("cannot look for foreign machines in pools", "error", err)
		return f.found
	}

	f.found = slices.DeleteFunc(found, func(n lb.Neighbour) bool {
		return speakers[n.MAC] != ""
	})
	return f.found
}

// isUnassigned reports whether a pool covers an address that no Service and no node has.
func isUnassigned(p plan.Plan, a netip.Addr) bool {
	if p.Filter.Frontends.Has(a) {
		return false
	}

	return slices.ContainsFunc(p.Filter.Guarded, func(r lb.Range) bool {
		return r.Contains(a)
	})
}
