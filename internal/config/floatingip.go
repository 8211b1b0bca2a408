package config

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// compileFloatingIPs returns the FloatingIPs, ordered by key. Services must be read before, since FloatingIPs name
// them.
func (c *Compiler) compileFloatingIPs(objects []*v1beta1.FloatingIP, pools []lb.Pool) []lb.FloatingIP {
	var out []lb.FloatingIP
	for _, o := range objects {
		out = append(out, c.compileFloatingIP(o, pools))
	}

	slices.SortFunc(out, func(a, b lb.FloatingIP) int {
		return a.Key.Compare(b.Key)
	})
	return out
}

// compileFloatingIP reads a FloatingIP.
func (c *Compiler) compileFloatingIP(o *v1beta1.FloatingIP, pools []lb.Pool) lb.FloatingIP {
	service := lb.Key{Namespace: o.Namespace, Name: o.Spec.ServiceName}
	f := lb.FloatingIP{
		Key:         KeyOf(o),
		UID:         string(o.UID),
		Labels:      o.Labels,
		Created:     o.CreationTimestamp.Time,
		Pool:        o.Spec.Pool,
		Delete:      o.Spec.ReclaimPolicy == v1beta1.ReclaimDelete,
		ServiceName: o.Spec.ServiceName,
		ServiceGone: o.Spec.ServiceName != "" && !c.watched.Has(service),
		Deleting:    o.DeletionTimestamp != nil,
		Record:      readRecord(o.UID, o.Status.Conditions),
		Recall:      recall(o),
		Addresses:   Addresses(o.Status.Addresses),
	}

	f.Wanted, f.Families = readFloating(o.Spec)
	f.Wanted = append(f.Wanted, lostAddresses(f, pools)...)

	holder := o.Status.BoundTo
	if holder != nil {
		f.BoundTo = lb.Key{Namespace: o.Namespace, Name: holder.Name}
		f.BoundUID = holder.UID
	}

	return f
}

// lostAddresses returns the addresses that a FloatingIP had before its status was lost, as in a restore. It leaves out
// families in which the spec requests an address. The FloatingIP requests these addresses and accepts no others.
func lostAddresses(f lb.FloatingIP, pools []lb.Pool) []netip.Addr {
	known := slices.Concat(f.Wanted, f.Addresses)
	var out []netip.Addr
	for _, origin := range f.Recall {
		a := origin.Address
		isSameFamily := func(b netip.Addr) bool { return a.BitLen() == b.BitLen() }
		isWanted := slices.Contains(f.Families, lb.FamilyOf(a))
		if !isWanted || slices.ContainsFunc(known, isSameFamily) {
			continue
		}

		isInPool := f.Pool == "" ||
			f.Pool == origin.Pool ||
			poolAnswersTo(pools, origin.Pool, f.Pool)
		if isInPool {
			out = append(out, a)
		}
	}

	return out
}

// poolAnswersTo reports whether the pool with the first name has the second one as an alias.
func poolAnswersTo(pools []lb.Pool, pool, name string) bool {
	return slices.ContainsFunc(pools, func(p lb.Pool) bool {
		return p.Name == pool && p.Answers(name)
	})
}

// readFloating returns the requested addresses and families. There is at least one family. The schema ensures that
// addresses and families agree.
func readFloating(spec v1beta1.FloatingIPSpec) (wanted []netip.Addr, families []lb.Family) {
	for _, f := range spec.IPFamilies {
		families = append(families, lb.Family(f))
	}

	wanted = Addresses(spec.Addresses)
	if len(spec.IPFamilies) == 0 {
		for _, a := range wanted {
			families = append(families, lb.FamilyOf(a))
		}
	}

	if len(families) == 0 {
		families = []lb.Family{lb.IPv4}
	}

	return wanted, families
}
