package config

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
)

// compileFloatingIPs returns the FloatingIPs, ordered by key.
func compileFloatingIPs(r *report, objects []*v1beta1.FloatingIP, services []*corev1.Service) []lb.FloatingIP {
	var out []lb.FloatingIP
	gone := missingServices(objects, services)
	for _, o := range objects {
		f := lb.FloatingIP{
			Key:         lb.Key{Namespace: o.Namespace, Name: o.Name},
			UID:         string(o.UID),
			Labels:      o.Labels,
			Created:     o.CreationTimestamp.Time,
			Pool:        o.Spec.Pool,
			Delete:      o.Spec.ReclaimPolicy == v1beta1.ReclaimDelete,
			ServiceName: o.Spec.ServiceName,
			ServiceGone: gone[lb.Key{Namespace: o.Namespace, Name: o.Spec.ServiceName}],
			Deleting:    o.DeletionTimestamp != nil,
			Record:      readRecord(o.UID, o.Status.Conditions),
			Recall:      recall(o),
		}
		var err error
		f.Wanted, f.Families, err = readFloating(o.Spec)
		object := lb.Object{Kind: KindFloatingIP, Namespace: o.Namespace, Name: o.Name}
		unread := reportUnreadable(r, object, o, "the FloatingIP keeps its addresses, and gets no new ones")
		if err != nil {
			r.fault(object, lb.InvalidRequest, "%v", err)
		}
		if err != nil || len(unread) > 0 {
			f.Problem = waits(r.problems[len(r.problems)-1])
		}
		for _, text := range o.Status.Addresses {
			if a, err := parseAddr(text); err == nil && !slices.Contains(f.Addresses, a) {
				f.Addresses = append(f.Addresses, a)
			}
		}
		if unread["status"] != "" || unread["status.addresses"] != "" {
			for _, origin := range f.Record {
				f.Addresses = append(f.Addresses, origin.Address)
			}
		}
		if err == nil {
			f.Wanted = append(f.Wanted, lostAddresses(f)...)
		}
		for _, a := range f.Addresses {
			// Addresses of a family that is no longer requested go as soon as the request is readable.
			if err != nil && !slices.Contains(f.Families, lb.FamilyOf(a)) {
				f.Families = append(f.Families, lb.FamilyOf(a))
			}
		}
		if b := o.Status.BoundTo; b != nil {
			f.BoundTo, f.BoundUID = lb.Key{Namespace: o.Namespace, Name: b.Name}, b.UID
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b lb.FloatingIP) int { return a.Key.Compare(b.Key) })
	return out
}

// missingServices returns which of the Services that FloatingIPs name do not exist.
func missingServices(objects []*v1beta1.FloatingIP, services []*corev1.Service) map[lb.Key]bool {
	gone := map[lb.Key]bool{}
	for _, f := range objects {
		if f.Spec.ServiceName != "" {
			gone[lb.Key{Namespace: f.Namespace, Name: f.Spec.ServiceName}] = true
		}
	}
	for _, s := range services {
		delete(gone, lb.Key{Namespace: s.Namespace, Name: s.Name})
	}
	return gone
}

// lostAddresses returns the addresses that a FloatingIP had before its status was lost, as in a restore, in families of
// which the spec asks for none. It asks for them, and does not take others instead.
func lostAddresses(f lb.FloatingIP) []netip.Addr {
	var out []netip.Addr
	for _, had := range f.Recall {
		a := had.Address
		same := func(b netip.Addr) bool { return a.BitLen() == b.BitLen() }
		known := slices.ContainsFunc(slices.Concat(f.Wanted, f.Addresses), same)
		if !known && slices.Contains(f.Families, lb.FamilyOf(a)) && (f.Pool == "" || f.Pool == had.Pool) {
			out = append(out, a)
		}
	}
	return out
}

// readFloating reads the requested addresses and families; the families are never empty.
func readFloating(spec v1beta1.FloatingIPSpec) ([]netip.Addr, []lb.Family, error) {
	var wanted []netip.Addr
	var families []lb.Family
	for _, f := range spec.IPFamilies {
		if family := lb.Family(f); !slices.Contains(families, family) && (family == lb.IPv4 || family == lb.IPv6) {
			families = append(families, family)
		}
	}
	stated := len(families) > 0
	for _, text := range spec.Addresses {
		a, err := parseAddr(text)
		if err != nil {
			return nil, orIPv4(families), fmt.Errorf("spec.addresses: %w", err)
		}
		family := lb.FamilyOf(a)
		if stated && !slices.Contains(families, family) {
			return nil, families, fmt.Errorf("spec.addresses asks for %s, but spec.ipFamilies has no %s: change one of the two", a, family)
		}
		if slices.ContainsFunc(wanted, func(b netip.Addr) bool { return b.BitLen() == a.BitLen() }) {
			return nil, orIPv4(families), fmt.Errorf("spec.addresses has two %s addresses: write one of each family", family)
		}
		wanted = append(wanted, a)
		if !stated {
			families = append(families, family)
		}
	}
	return wanted, orIPv4(families), nil
}

func orIPv4(families []lb.Family) []lb.Family {
	if len(families) == 0 {
		return []lb.Family{lb.IPv4}
	}
	return families
}
