package explain

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cloud is the configuration of OpenStack's cloud controller manager.
type Cloud struct {
	LoadBalancer struct {
		CloudSubnet
		MaxSharedLB  int    `gcfg:"max-shared-lb"`
		InternalLB   bool   `gcfg:"internal-lb"`
		NodeSelector string `gcfg:"node-selector"`
	}
	LoadBalancerClass map[string]*CloudSubnet
}

// CloudSubnet says where addresses come from.
type CloudSubnet struct {
	FloatingNetworkID  string `gcfg:"floating-network-id"`
	FloatingSubnetID   string `gcfg:"floating-subnet-id"`
	FloatingSubnet     string `gcfg:"floating-subnet"`
	FloatingSubnetTags string `gcfg:"floating-subnet-tags"`
	NetworkID          string `gcfg:"network-id"`
	SubnetID           string `gcfg:"subnet-id"`
}

const occm = "loadbalancer.openstack.org/"

// inUse returns the addresses of a Service. The cloud controller manager may show a host name in place of an address.
func inUse(o *corev1.Service) []netip.Addr {
	out := addresses(o)
	if a, err := netip.ParseAddr(o.Annotations[occm+"load-balancer-address"]); err == nil && out == nil && len(o.Status.LoadBalancer.Ingress) > 0 {
		out = append(out, a)
	}
	return out
}

// OpenStack returns the move of what the cloud controller manager uses and makes. Only OpenStack knows the ranges of subnets.
func (s Snapshot) OpenStack(cloud Cloud, before []*corev1.Service) Move {
	m, opt := Move{Snapshot: s, Report: Report{Subject: "Move from OpenStack"}}, cloud.LoadBalancer
	m.note(Note, "chart", "install Holdfast with the values openStack: {maxShared: %d, internal: %t, nodeSelector: %q}", cmp.Or(opt.MaxSharedLB, 2),
		opt.InternalLB, opt.NodeSelector)
	m.Options.OpenStack.MaxShared, m.Options.OpenStack.Internal = opt.MaxSharedLB, opt.InternalLB
	m.Options.NodeSelector, _ = config.ParseNodeSelector(opt.NodeSelector)
	pools := map[string]*v1beta1.IPAddressPool{}
	cloud.pool(pools, &corev1.Service{}, false)
	for class := range cloud.LoadBalancerClass {
		cloud.pool(pools, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{occm + "class": class}}}, false)
	}
	holders := map[netip.Addr]int{}
	for _, o := range s.Objects.Services {
		for _, a := range inUse(o) {
			holders[a]++
		}
	}
	state, _ := m.compile()
	var floating []*v1beta1.FloatingIP
	for _, one := range state.Services {
		o := Find(s.Objects.Services, one.Key.Namespace, one.Key.Name)
		fip := &v1beta1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}, Spec: v1beta1.FloatingIPSpec{ServiceName: o.Name}}
		if fip.Spec.ReclaimPolicy = v1beta1.ReclaimDelete; one.KeepFloatingIP {
			fip.Spec.ReclaimPolicy = v1beta1.ReclaimRetain
		}
		for _, a := range inUse(o) {
			if p := cloud.pool(pools, o, one.Internal); holders[a] > 0 {
				p.Spec.Addresses = append(p.Spec.Addresses, a.String())
			}
			if holders[a] == 1 && !one.Internal {
				fip.Spec.Addresses = append(fip.Spec.Addresses, a.String())
			}
			holders[a] = 0 // the pool has it, whoever else shares it
		}
		if fip.Spec.Addresses != nil {
			floating = append(floating, fip)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		if pools[name].Spec.Addresses == nil {
			m.note(Problem, "IPAddressPool "+name, "no Service has an address of it: write the ranges of its subnet, or leave it out")
		}
		m.create(config.KindPool, pools[name])
	}
	for _, fip := range floating {
		m.create(config.KindFloatingIP, fip)
	}
	m.note(Note, "pools", "they hold the addresses in use: add the other ranges of their subnets, and the names and tags that patterns match")
	m.finish(before)
	return m
}

// pool returns the pool that the annotations of a Service choose, of which class wins.
func (c Cloud) pool(pools map[string]*v1beta1.IPAddressPool, o *corev1.Service, internal bool) *v1beta1.IPAddressPool {
	from, name, class := c.LoadBalancer.CloudSubnet, "openstack", o.Annotations[occm+"class"]
	id := cmp.Or(o.Annotations[occm+"floating-subnet-id"], o.Annotations[occm+"floating-network-id"])
	if internal {
		id = cmp.Or(o.Annotations[occm+"subnet-id"], o.Annotations[occm+"network-id"])
	}
	if of := c.LoadBalancerClass[class]; of != nil {
		network := from.FloatingNetworkID
		from, name = *of, strings.ToLower(class)
		from.FloatingNetworkID = cmp.Or(from.FloatingNetworkID, network)
	} else if id != "" && !slices.Contains([]string{from.FloatingSubnetID, from.FloatingNetworkID, from.SubnetID, from.NetworkID}, id) {
		from, name = CloudSubnet{FloatingSubnetID: id, SubnetID: id}, strings.ToLower(id)
	}
	spec := v1beta1.IPAddressPoolSpec{Scope: v1beta1.ScopeExternal}
	aliases, tags := []string{from.FloatingNetworkID, from.FloatingSubnetID, from.FloatingSubnet}, from.FloatingSubnetTags
	if internal {
		name, spec.Scope, aliases, tags = name+"-internal", v1beta1.ScopeInternal, []string{from.NetworkID, from.SubnetID}, ""
	}
	if pools[name] == nil {
		spec.Aliases = slices.DeleteFunc(aliases, func(alias string) bool { return alias == "" || strings.ContainsAny(alias, "!~*?{") })
		if !strings.HasPrefix(tags, "!") {
			spec.Tags = strings.FieldsFunc(tags, func(c rune) bool { return strings.ContainsRune("&, ", c) })
		}
		if class != "" {
			spec.Classes = v1beta1.Words{class}
		}
		pools[name] = &v1beta1.IPAddressPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	}
	return pools[name]
}
