package main

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cloud is the configuration of OpenStack's cloud controller manager.
type Cloud struct {
	LoadBalancer      CloudSection
	LoadBalancerClass map[string]*CloudSection
}

// CloudSection is a section about the networks of addresses. Only [LoadBalancer] has the last three settings.
type CloudSection struct {
	FloatingNetworkID  string `gcfg:"floating-network-id"`
	FloatingSubnetID   string `gcfg:"floating-subnet-id"`
	FloatingSubnet     string `gcfg:"floating-subnet"`
	FloatingSubnetTags string `gcfg:"floating-subnet-tags"`
	NetworkID          string `gcfg:"network-id"`
	SubnetID           string `gcfg:"subnet-id"`
	MaxSharedLB        int    `gcfg:"max-shared-lb"`
	InternalLB         bool   `gcfg:"internal-lb"`
	NodeSelector       string `gcfg:"node-selector"`
}

// occm is the prefix of the annotations of OpenStack's cloud controller manager.
const occm = "loadbalancer.openstack.org/"

// inUse returns the addresses of a Service. The cloud controller manager may show a host name in place of an address.
func inUse(o *corev1.Service) []netip.Addr {
	out := config.StatusAddresses(o)
	if out != nil {
		return out
	}

	a, err := netip.ParseAddr(o.Annotations[occm+"load-balancer-address"])
	if err != nil {
		return nil
	}

	return []netip.Addr{a}
}

// OpenStack returns the move of what the cloud controller manager uses and makes. Only OpenStack knows the ranges of
// subnets.
func (s Snapshot) OpenStack(cloud Cloud, before []*corev1.Service) Move {
	m := Move{Snapshot: s, Report: Report{Subject: "Move from OpenStack"}}
	options := cloud.LoadBalancer
	m.note(
		Note,
		"chart",
		"",
		"install Holdfast with the values openStack: {maxShared: %d, internal: %t, nodeSelector: %q}",
		cmp.Or(options.MaxSharedLB, 2),
		options.InternalLB,
		options.NodeSelector,
	)

	m.Options.OpenStack.Internal = options.InternalLB

	pools := newCloudPools(cloud)
	floatingIPs := m.fillPools(pools)
	for _, name := range slices.Sorted(maps.Keys(pools.byName)) {
		pool := pools.byName[name]
		if pool.Spec.Addresses == nil {
			m.note(
				Problem,
				"IPAddressPool "+name,
				"write the ranges of its subnet, or leave it out",
				"no Service has an address of it",
			)
		}

		m.Objects = append(m.Objects, pool)
	}

	for _, ip := range floatingIPs {
		m.Objects = append(m.Objects, ip)
	}

	m.note(
		Note,
		"pools",
		"add the other ranges of their subnets, and the names and tags that patterns match",
		"they hold the addresses in use",
	)

	return m.finish(before)
}

// fillPools adds the addresses of the Services to their pools, each address once. It returns the FloatingIPs that no
// other Service shares.
func (m *Move) fillPools(pools cloudPools) (floatingIPs []*v1beta1.FloatingIP) {
	holders := map[netip.Addr]int{}
	for _, o := range m.Snapshot.Objects.Services {
		for _, a := range inUse(o) {
			holders[a]++
		}
	}

	state, _ := m.compile()
	for _, service := range state.Services {
		o := Find(m.Snapshot.Objects.Services, service.Key.Namespace, service.Key.Name)
		ip := newFloatingIP(service)
		for _, a := range inUse(o) {
			pool := pools.of(service, o.Annotations)
			if holders[a] > 0 {
				pool.Spec.Addresses = append(pool.Spec.Addresses, a.String())
			}

			if holders[a] == 1 && !service.Internal {
				ip.Spec.Addresses = append(ip.Spec.Addresses, a.String())
			}

			holders[a] = 0 // the pool has it, and other Services that share it add it no more
		}

		if ip.Spec.Addresses != nil {
			floatingIPs = append(floatingIPs, ip)
		}
	}

	return floatingIPs
}

// newFloatingIP returns the FloatingIP of a Service, without addresses.
func newFloatingIP(service *lb.Service) *v1beta1.FloatingIP {
	policy := v1beta1.ReclaimDelete
	if service.KeepFloatingIP {
		policy = v1beta1.ReclaimRetain
	}

	return &v1beta1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Key.Namespace,
			Name:      service.Key.Name,
		},
		Spec: v1beta1.FloatingIPSpec{
			ServiceName:   service.Key.Name,
			ReclaimPolicy: policy,
		},
	}
}

// cloudPools are the pools of a cloud's networks, subnets and classes.
type cloudPools struct {
	cloud  Cloud
	byName map[string]*v1beta1.IPAddressPool
}

// newCloudPools returns the pools that the configuration has: the default one, and one for each class.
func newCloudPools(cloud Cloud) cloudPools {
	p := cloudPools{cloud: cloud, byName: map[string]*v1beta1.IPAddressPool{}}
	p.pool("", "", false)
	for class := range cloud.LoadBalancerClass {
		p.pool(class, "", false)
	}

	return p
}

// of returns the pool of a Service.
func (p cloudPools) of(service *lb.Service, annotations map[string]string) *v1beta1.IPAddressPool {
	subnet := annotations[occm+"floating-subnet-id"]
	network := annotations[occm+"floating-network-id"]
	if service.Internal {
		subnet = annotations[occm+"subnet-id"]
		network = annotations[occm+"network-id"]
	}

	return p.pool(service.Class, cmp.Or(subnet, network), service.Internal)
}

// pool returns the pool of a class or else, if a Service names an id, of that network or subnet. It adds a new pool.
func (p cloudPools) pool(class, id string, isInternal bool) *v1beta1.IPAddressPool {
	name, section := p.section(class, id)
	spec := section.externalSpec()
	if isInternal {
		name += "-internal"
		spec = section.internalSpec()
	}

	if class != "" {
		spec.Classes = v1beta1.Words{class}
	}

	name = strings.ToLower(name)
	if p.byName[name] == nil {
		p.byName[name] = &v1beta1.IPAddressPool{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       spec,
		}
	}

	return p.byName[name]
}

// section returns the section of a class with its name. An id that the default section does not have makes a section of
// its own.
func (p cloudPools) section(class, id string) (name string, section CloudSection) {
	section = *cmp.Or(p.cloud.LoadBalancerClass[class], &p.cloud.LoadBalancer)
	section.FloatingNetworkID = cmp.Or(section.FloatingNetworkID, p.cloud.LoadBalancer.FloatingNetworkID)
	if class != "" {
		return class, section
	}

	known := []string{
		section.FloatingSubnetID,
		section.FloatingNetworkID,
		section.SubnetID,
		section.NetworkID,
	}

	if id == "" || slices.Contains(known, id) {
		return "openstack", section
	}

	return id, CloudSection{FloatingSubnetID: id, SubnetID: id}
}

// externalSpec returns the pool of a section's floating IPs.
func (c CloudSection) externalSpec() v1beta1.IPAddressPoolSpec {
	spec := v1beta1.IPAddressPoolSpec{
		Scope:   v1beta1.ScopeExternal,
		Aliases: withoutPatterns(c.FloatingNetworkID, c.FloatingSubnetID, c.FloatingSubnet),
	}

	if !isPattern(c.FloatingSubnetTags) {
		isSeparator := func(r rune) bool { return strings.ContainsRune("&, ", r) }
		spec.Tags = strings.FieldsFunc(c.FloatingSubnetTags, isSeparator)
	}
	return spec
}

// internalSpec returns the pool of a section's internal addresses.
func (c CloudSection) internalSpec() v1beta1.IPAddressPoolSpec {
	return v1beta1.IPAddressPoolSpec{
		Scope:   v1beta1.ScopeInternal,
		Aliases: withoutPatterns(c.NetworkID, c.SubnetID),
	}
}

// isPattern reports whether a name is empty or a pattern, which only OpenStack can resolve.
func isPattern(name string) bool {
	return name == "" || strings.ContainsAny(name, "!~*?{")
}

// withoutPatterns returns the names that are no patterns.
func withoutPatterns(names ...string) []string {
	return slices.DeleteFunc(names, isPattern)
}
