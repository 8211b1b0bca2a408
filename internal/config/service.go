package config

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// compileServices returns the Services that are ours, ordered by key, and the
// addresses that stand in the status of the others. A Service that is being
// deleted is no longer served; but kube-proxy goes on delivering its addresses
// until the object is gone, so until then they are reserved. The same holds for
// another load balancer's Services, whose addresses may lie in our pools while a
// cluster moves from one to the other.
func compileServices(r *report, objects []*corev1.Service, endpointSlices []*discoveryv1.EndpointSlice, opt Options) ([]lb.Service, map[netip.Addr]lb.Key) {
	var services []lb.Service
	reserved := map[netip.Addr]lb.Key{}
	endpoints := endpointsByService(endpointSlices)
	for _, o := range objects {
		if o.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		key := lb.Key{Namespace: o.Namespace, Name: o.Name}
		if !isOurs(o, opt) || o.DeletionTimestamp != nil {
			for _, a := range statusAddresses(o) {
				if other, taken := reserved[a]; !taken || key.Compare(other) < 0 {
					reserved[a] = key
				}
			}
			continue
		}
		services = append(services, compileService(r, key, o, endpoints[key]))
	}
	slices.SortFunc(services, func(a, b lb.Service) int { return a.Key.Compare(b.Key) })
	return services, reserved
}

func isOurs(o *corev1.Service, opt Options) bool {
	if o.Spec.LoadBalancerClass == nil {
		return opt.Default
	}
	return *o.Spec.LoadBalancerClass == opt.LoadBalancerClass
}

func compileService(r *report, key lb.Key, o *corev1.Service, e endpoints) lb.Service {
	object := lb.Object{Kind: KindService, Namespace: key.Namespace, Name: key.Name}
	families := familiesOf(o)
	asked, problem := readRequest(r, object, o, families)
	return lb.Service{
		Key:                key,
		UID:                string(o.UID),
		Labels:             o.Labels,
		Created:            o.CreationTimestamp.Time,
		Families:           families,
		FamilyPolicy:       policyOf(o),
		Ports:              portsOf(o),
		Local:              o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		RequestedAddresses: asked.addresses,
		RequestedPool:      asked.pool,
		Problem:            problem,
		Addresses:          statusAddresses(o),
		AssignedFrom:       assignedFrom(o),
		ServingNodes:       e.nodes,
		Serving:            e.serving,
	}
}

// familiesOf reads the families from the cluster IPs, which are what kube-proxy
// translates to; spec.ipFamilies is only a wish until they are given.
func familiesOf(o *corev1.Service) []lb.Family {
	ips := o.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{o.Spec.ClusterIP}
	}
	var out []lb.Family
	for _, ip := range ips {
		// "None" and "" are no addresses: headless, or not yet given.
		if a, err := parseAddr(ip); err == nil && !slices.Contains(out, lb.FamilyOf(a)) {
			out = append(out, lb.FamilyOf(a))
		}
	}
	return out
}

func policyOf(o *corev1.Service) lb.FamilyPolicy {
	if o.Spec.IPFamilyPolicy == nil {
		return lb.SingleStack
	}
	return lb.FamilyPolicy(*o.Spec.IPFamilyPolicy)
}

func portsOf(o *corev1.Service) []lb.Port {
	var out []lb.Port
	for _, p := range o.Spec.Ports {
		protocol := string(p.Protocol)
		if protocol == "" {
			protocol = string(corev1.ProtocolTCP)
		}
		out = append(out, lb.Port{Protocol: protocol, Port: uint16(p.Port)})
	}
	return out
}

// statusAddresses returns the addresses in the status; host names and what
// cannot be read are none.
func statusAddresses(o *corev1.Service) []netip.Addr {
	var out []netip.Addr
	for _, ingress := range o.Status.LoadBalancer.Ingress {
		if a, err := parseAddr(ingress.IP); err == nil && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}
