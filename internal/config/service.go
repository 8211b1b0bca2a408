package config

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// services sorts the Services into ours, ordered by key, those that are leaving, and
// the addresses in the status of others. A Service that is being deleted is no longer
// served, but kube-proxy delivers its addresses until the object is gone, so until
// then they are not assigned. The same is true of Services of another load balancer,
// whose addresses may lie in our pools during a migration, and which may have been ours.
type services struct {
	report   *report
	opt      Options
	dialect  *openStack
	ours     []lb.Service
	leaving  []lb.Leaving
	reserved map[netip.Addr]lb.Key
	// notServed are the UIDs of existing Services that are not ours to serve; nil if nobody reads them.
	notServed map[lb.Key]string
}

func (s *services) compile(objects []*corev1.Service, endpointSlices []*discoveryv1.EndpointSlice) {
	endpoints := endpointsByService(endpointSlices)
	// Sorting pointers is faster than sorting the compiled values.
	objects = slices.Clone(objects)
	slices.SortFunc(objects, func(a, b *corev1.Service) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	served := 0
	for _, o := range objects {
		if s.opt.Serves(o) {
			served++
		}
	}
	s.ours = slices.Grow(s.ours, served)
	for _, o := range objects {
		key := lb.Key{Namespace: o.Namespace, Name: o.Name}
		if s.notServed != nil && o.DeletionTimestamp == nil && !s.opt.Serves(o) {
			s.notServed[key] = string(o.UID)
		}
		if s.opt.Serves(o) {
			s.ours = append(s.ours, compileService(s.report, key, o, endpoints[key], s.dialect))
			continue
		}
		ours, others := s.opt.Shown(o)
		s.leave(key, o, ours, endpoints[key])
		s.reserve(key, others)
	}
	forgetRestored(s.ours)
}

// forgetRestored drops load balancer ids that a restore brought back: the Services
// that they named have other UIDs now. What a restored Service had is in its recorded
// addresses. Without such a record an unknown id is the user's mistake.
func forgetRestored(services []lb.Service) {
	known := map[string]bool{}
	for _, s := range services {
		known[s.UID] = true
	}
	for i := range services {
		if s := &services[i]; s.LoadBalancerID != "" && len(s.AssignedFrom) > 0 && !known[s.LoadBalancerID] {
			s.LoadBalancerID, s.MaxShared = "", 0
			s.Revision = "" // this depends on other Services
		}
	}
}

func (s *services) reserve(key lb.Key, addresses []netip.Addr) {
	for _, a := range addresses {
		if other, taken := s.reserved[a]; !taken || key.Compare(other) < 0 {
			s.reserved[a] = key
		}
	}
}

// leave adds a Service that had addresses of ours, with those that its status shows. The write
// that changes a Service's type empties its status, so the recorded addresses count too. They count
// only while a condition, which users do not write, confirms that it had addresses. If the condition says that the Service
// lacks something, those count that are recorded with terms beside our finalizer, as every held one is. Its source ranges
// hold for what its status shows; with another type it has lost them.
func (s *services) leave(key lb.Key, o *corev1.Service, shown []netip.Addr, e endpoints) {
	l := lb.Leaving{Key: key, UID: string(o.UID), Addresses: slices.Clone(shown)}
	if len(shown) > 0 && o.Spec.Type == corev1.ServiceTypeLoadBalancer {
		// Nobody has to mend a Service that leaves.
		l.Served = compileService(&report{}, key, o, e, s.dialect)
		l.Served.Addresses = shown
	}
	c := apimeta.FindStatusCondition(o.Status.Conditions, v1beta1.ConditionAddressAssigned)
	if c != nil {
		marked := slices.Contains(o.Finalizers, v1beta1.FinalizerAddress)
		from, terms := assigned(o)
		for a := range from {
			if (c.Status == metav1.ConditionTrue || marked && terms[a] != "") && !slices.Contains(l.Addresses, a) {
				l.Addresses = append(l.Addresses, a)
			}
		}
		slices.SortFunc(l.Addresses, netip.Addr.Compare)
	}
	if len(l.Addresses) > 0 {
		s.leaving = append(s.leaving, l)
	}
}

// Foreign reports whether another load balancer may serve the Service.
func (opt Options) Foreign(o *corev1.Service) bool {
	return o.Spec.Type == corev1.ServiceTypeLoadBalancer && !isOurs(o, opt)
}

// Shown splits the addresses in the status of a Service that we do not serve into ours, which it must give
// up, and others'. If another load balancer may serve the Service, our finalizer proves that it was ours
// before, and ours are those that we recorded.
func (opt Options) Shown(o *corev1.Service) (ours, others []netip.Addr) {
	addresses := statusAddresses(o)
	switch {
	case !opt.Foreign(o):
		return addresses, nil
	case !slices.Contains(o.Finalizers, v1beta1.FinalizerAddress):
		return nil, addresses
	}
	recorded := assignedFrom(o)
	for _, a := range addresses {
		if _, is := recorded[a]; is {
			ours = append(ours, a)
		} else {
			others = append(others, a)
		}
	}
	return ours, others
}

// Serves reports whether a Service is ours and is not leaving.
func (opt Options) Serves(o *corev1.Service) bool {
	return o.Spec.Type == corev1.ServiceTypeLoadBalancer && isOurs(o, opt) && o.DeletionTimestamp == nil
}

func isOurs(o *corev1.Service, opt Options) bool {
	if o.Spec.LoadBalancerClass == nil {
		return opt.Default
	}
	return *o.Spec.LoadBalancerClass == opt.LoadBalancerClass
}

func compileService(r *report, key lb.Key, o *corev1.Service, e endpoints, dialect *openStack) lb.Service {
	object := lb.Object{Kind: KindService, Namespace: key.Namespace, Name: key.Name}
	ips := clusterIPs(o)
	families := familiesOf(ips)
	asked, problem := readRequest(r, object, o, families)
	var access lb.Access
	if dialect.opt.NoFilter {
		ignoreAccess(r, object, o)
	} else {
		access = readAccess(r, object, o, dialect.opt)
	}
	wish, unclear := readWish(r, object, o, dialect, &access)
	if problem == nil {
		problem = unclear
	}
	from, terms := assigned(o)
	revision := o.ResourceVersion
	if dialect.copiedID(o) {
		revision = "" // this depends on other Services
	}
	return lb.Service{
		Key:                key,
		UID:                string(o.UID),
		Revision:           revision,
		Labels:             o.Labels,
		Created:            o.CreationTimestamp.Time,
		Families:           families,
		FamilyPolicy:       policyOf(o),
		ClusterIPs:         ips,
		Ports:              portsOf(o),
		Local:              o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		InternalLocal:      o.Spec.InternalTrafficPolicy != nil && *o.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
		HealthPort:         uint16(o.Spec.HealthCheckNodePort),
		RequestedAddresses: asked.addresses,
		RequestedPool:      asked.pool,
		Wish:               wish,
		Access:             access,
		Problem:            problem,
		Addresses:          statusAddresses(o),
		AssignedFrom:       from,
		SharingTerms:       terms,
		ServingNodes:       e.nodes,
		Serving:            e.serving,
		ServingAnywhere:    e.anywhere,
		AnnouncedBy:        announcedBy(o),
	}
}

// familiesOf reads the families from the cluster IPs, which kube-proxy translates
// to; until they are allocated spec.ipFamilies is only a request.
func familiesOf(ips []netip.Addr) []lb.Family {
	var out []lb.Family
	for _, a := range ips {
		out = append(out, lb.FamilyOf(a))
	}
	return out
}

func clusterIPs(o *corev1.Service) []netip.Addr {
	ips := o.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{o.Spec.ClusterIP}
	}
	var out []netip.Addr
	for _, ip := range ips {
		// "None" (headless) and "" (not yet allocated) are no addresses.
		a, err := parseAddr(ip)
		if err == nil && !slices.ContainsFunc(out, func(b netip.Addr) bool { return a.BitLen() == b.BitLen() }) {
			out = append(out, a)
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

// statusAddresses returns the addresses in the status, without host names and
// unreadable entries.
func statusAddresses(o *corev1.Service) []netip.Addr {
	var out []netip.Addr
	for _, ingress := range o.Status.LoadBalancer.Ingress {
		if a, err := parseAddr(ingress.IP); err == nil && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}
