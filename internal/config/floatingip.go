package config

import (
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// compileFloatingIPs returns the FloatingIPs, ordered by key. It looks their Services up, so these are read before.
func (c *Compiler) compileFloatingIPs(objects []*v1beta1.FloatingIP, pools []lb.Pool) []lb.FloatingIP {
	var out []lb.FloatingIP
	for _, o := range objects {
		f := lb.FloatingIP{
			Key:         KeyOf(o),
			UID:         string(o.UID),
			Labels:      o.Labels,
			Created:     o.CreationTimestamp.Time,
			Pool:        o.Spec.Pool,
			Delete:      o.Spec.ReclaimPolicy == v1beta1.ReclaimDelete,
			ServiceName: o.Spec.ServiceName,
			ServiceGone: o.Spec.ServiceName != "" &&
				!c.services.Has(lb.Key{Namespace: o.Namespace, Name: o.Spec.ServiceName}),
			Deleting: o.DeletionTimestamp != nil,
			Record:   readRecord(o.UID, o.Status.Conditions),
			Recall:   recall(o),
		}
		f.Wanted, f.Families = readFloating(o.Spec)
		f.Addresses = Addresses(o.Status.Addresses)
		f.Wanted = append(f.Wanted, lostAddresses(f, pools)...)
		if b := o.Status.BoundTo; b != nil {
			f.BoundTo, f.BoundUID = lb.Key{Namespace: o.Namespace, Name: b.Name}, b.UID
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b lb.FloatingIP) int { return a.Key.Compare(b.Key) })
	return out
}

// lostAddresses returns the addresses that a FloatingIP had before its status was lost, as in a restore, in families of
// which the spec asks for none. It asks for them, and does not take others instead.
func lostAddresses(f lb.FloatingIP, pools []lb.Pool) []netip.Addr {
	var out []netip.Addr
	for _, had := range f.Recall {
		a := had.Address
		same := func(b netip.Addr) bool { return a.BitLen() == b.BitLen() }
		known := slices.ContainsFunc(slices.Concat(f.Wanted, f.Addresses), same)
		if !known &&
			slices.Contains(f.Families, lb.FamilyOf(a)) &&
			(f.Pool == "" ||
				f.Pool == had.Pool ||
				answers(pools, had.Pool, f.Pool)) {
			out = append(out, a)
		}
	}
	return out
}

// answers reports whether the pool of the first name answers to the second one.
func answers(pools []lb.Pool, pool, name string) bool {
	return slices.ContainsFunc(pools, func(p lb.Pool) bool { return p.Name == pool && p.Answers(name) })
}

// readFloating reads the requested addresses and families; the families are never empty. The schema sees to it that
// they agree.
func readFloating(spec v1beta1.FloatingIPSpec) (wanted []netip.Addr, families []lb.Family) {
	for _, f := range spec.IPFamilies {
		families = append(families, lb.Family(f))
	}
	wanted = Addresses(spec.Addresses)
	for _, a := range wanted {
		if len(spec.IPFamilies) == 0 {
			families = append(families, lb.FamilyOf(a))
		}
	}
	if len(families) == 0 {
		families = []lb.Family{lb.IPv4}
	}
	return wanted, families
}
