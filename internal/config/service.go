package config

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
)

// compiledService is what the objects of one Service say, without other objects.
type compiledService struct {
	// object is nil if there are only EndpointSlices.
	object *corev1.Service
	// service is the Service as its objects declare it; nil if it is not ours.
	service *lb.Service
	// claims are nil if there are none.
	claims *serviceClaims
	// extras are nil for most Services.
	*extras
}

// reuse returns the next value, with equal parts of the last one. Equal lists of sources become one, so that later
// comparisons need not read them.
func (s *compiledService) reuse(next *compiledService) *compiledService {
	if s.service != nil && next.service != nil {
		next.service.Allow = reuseList(s.service.Allow, next.service.Allow)
		next.service.Deny = reuseList(s.service.Deny, next.service.Deny)
	}

	next.service = reuse(s.service, next.service)
	next.claims = reuse(s.claims, next.claims)
	next.extras = reuse(s.extras, next.extras)
	return next
}

// extras has what only few Services have: Services that are not ours, have Problems, or depend on other objects.
type extras struct {
	// original is the Service whose manifest the Service was copied from, as "namespace/name"; "" if it was not copied.
	original string
	// isRefused reports whether the controller refused proxies, by the status. Speakers follow this, since they read no
	// namespaces.
	isRefused bool
	// problems are the Problems of the Service by itself.
	problems []*lb.Problem

	// leaving has what a Service that is not ours must give up.
	leaving *lb.Leaving
	// reserved are addresses that another load balancer serves for the Service.
	reserved []netip.Addr
	// isMarked reports whether the Service is not ours and has a finalizer or a condition of ours.
	isMarked bool
}

// serviceReader reads Services.
type serviceReader struct {
	Options
	translator *openstack.Translator
	// names has the names of pools and nodes.
	names map[string]string
	// ranges are the ranges of the pools. A speaker does not need them.
	ranges lb.Index[int]
	// last has what was read of each Service with the same pools and names.
	last lb.Map[lb.Key, *compiledService]
}

// compileService reads a Service with its EndpointSlices. These change often, and a Service with long lists takes
// milliseconds to read: the same object is not read again.
func (x serviceReader) compileService(key lb.Key, objects *serviceObjects) compiledService {
	if objects.service == nil {
		return compiledService{}
	}

	last := x.last.Of(key)
	if last != nil && last.object == objects.service {
		return x.withEndpoints(*last, objects.endpoints)
	}

	s := x.readObject(key, objects.service)
	x.setEndpoints(s, objects.endpoints)
	return s
}

// readObject reads a Service without its endpoints.
func (x serviceReader) readObject(key lb.Key, o *corev1.Service) compiledService {
	s := compiledService{object: o, claims: x.readClaims(o)}
	if !x.Serves(o) {
		s.extras = x.compileOther(key, o)
		return s
	}

	var problems problemList
	s.service = new(x.readService(&problems, key, o))
	if len(problems.list) == 0 && !dependsOnOthers(s.service) {
		return s
	}

	original, _ := copyOf(o)
	proxied := apimeta.FindStatusCondition(o.Status.Conditions, v1beta1.ConditionProxied)
	s.extras = &extras{
		original:  original,
		isRefused: proxied != nil && proxied.Reason == string(lb.ProxyRefused),
		problems:  problems.list,
	}
	return s
}

// withEndpoints returns a copy of a Service that has these endpoints in place of others.
func (opt Options) withEndpoints(s compiledService, endpoints endpointList) compiledService {
	if s.service != nil {
		s.service = new(*s.service)
	}

	if s.isDelivered() {
		s.extras = new(*s.extras)
		s.leaving = new(*s.leaving)
		s.leaving.Served = new(*s.leaving.Served)
	}

	opt.setEndpoints(s, endpoints)
	return s
}

// setEndpoints sets the endpoints of a Service that nothing else has a pointer to yet.
func (opt Options) setEndpoints(s compiledService, endpoints endpointList) {
	if s.service != nil {
		opt.setBackends(s.service, s.object, endpoints)
	}

	if s.isDelivered() {
		opt.setBackends(s.leaving.Served, s.object, endpoints)
	}
}

// isDelivered reports whether the Service is served until it gives up its addresses.
func (s *compiledService) isDelivered() bool {
	return s.extras != nil && s.leaving != nil && s.leaving.Served != nil
}

// dependsOnOthers reports whether a Service depends on other objects than its own.
func dependsOnOthers(s *lb.Service) bool { return namesAnother(s) || dependsOnProxies(s) }

// namesAnother reports whether a Service has the load balancer id of another Service. Its own id has no effect.
func namesAnother(s *lb.Service) bool {
	return s.LoadBalancerID != "" && s.LoadBalancerID != s.UID
}

// dependsOnProxies reports whether a Service has proxies, or asks for them.
func dependsOnProxies(s *lb.Service) bool {
	return s.Proxy != nil || s.AsksProxy || s.Proxied
}

// OurConditions are the conditions that are removed from a Service when Holdfast stops serving it. The first may stay,
// to report that its addresses were released.
var OurConditions = []string{
	v1beta1.ConditionAddressAssigned,
	v1beta1.ConditionAnnotationsHonoured,
	v1beta1.ConditionFiltered,
	v1beta1.ConditionFilterEnforced,
	v1beta1.ConditionAnnouncedL2,
	v1beta1.ConditionAnnouncers,
	v1beta1.ConditionAnnouncedBGP,
	v1beta1.ConditionAddressRecord,
	v1beta1.ConditionProxied,
	v1beta1.ConditionProxyRecord,
	v1beta1.ConditionEgress,
}

// isMarked reports whether a Service has a finalizer or a condition of ours.
func isMarked(o *corev1.Service) bool {
	if slices.Contains(o.Finalizers, v1beta1.FinalizerAddress) {
		return true
	}
	// A speaker may have written a condition at the last moment.
	return slices.ContainsFunc(o.Status.Conditions, func(c metav1.Condition) bool {
		return slices.Contains(OurConditions, c.Type) || c.Type == v1beta1.ConditionWritten
	})
}

// Foreign reports whether another load balancer may serve the Service.
func (opt Options) Foreign(o *corev1.Service) bool {
	return o.Spec.Type == corev1.ServiceTypeLoadBalancer && !isOurs(o, opt)
}

// Serves reports whether a Service is ours and is not leaving.
func (opt Options) Serves(o *corev1.Service) bool {
	isLeaving := o.Spec.Type != corev1.ServiceTypeLoadBalancer || o.DeletionTimestamp != nil
	return !isLeaving && isOurs(o, opt)
}

// isOurs reports whether a Service of type LoadBalancer has a class that Holdfast serves.
func isOurs(o *corev1.Service, opt Options) bool {
	if o.Spec.LoadBalancerClass == nil {
		return opt.Default
	}
	return *o.Spec.LoadBalancerClass == opt.LoadBalancerClass
}

// Shown splits the addresses in the status of a Service that Holdfast does not serve: into ours, which the Service must
// give up, and others. If another load balancer may serve the Service, our finalizer proves that it was ours before,
// and ours are the addresses that we recorded.
func (opt Options) Shown(o *corev1.Service) (ours, others []netip.Addr) {
	addresses := StatusAddresses(o)
	if !opt.Foreign(o) {
		return addresses, nil
	}
	if !slices.Contains(o.Finalizers, v1beta1.FinalizerAddress) {
		return nil, addresses
	}

	record := readRecord(o.UID, o.Status.Conditions)
	for _, a := range addresses {
		if record.Of(a).Pool != "" {
			ours = append(ours, a)
		} else {
			others = append(others, a)
		}
	}

	return ours, others
}

// readService reads a Service without other objects.
func (x serviceReader) readService(r *problemList, key lb.Key, o *corev1.Service) lb.Service {
	object := ServiceObject(key)

	// kube-proxy translates to the cluster IPs; until they are allocated, spec.ipFamilies is only a request.
	ips := clusterIPs(o)
	var families []lb.Family
	for _, a := range ips {
		families = append(families, lb.FamilyOf(a))
	}

	readable, tooLong := withoutLongAnnotations(r, object, o, x.Options)
	pool, _ := firstAnnotation(r, object, readable, AnnotationPool, MetalLBPool, MetalLBPoolOld)

	addresses, err := readAddresses(r, object, readable, families)
	var badAddresses *lb.Problem
	if err != nil {
		pool = ""
		badAddresses = r.add(object, lb.InvalidRequest, "%v", err)
	}

	access := x.readAccess(r, object, readable)
	wish, badWish := x.readWish(r, object, readable)

	s := lb.Service{
		Key:                key,
		UID:                string(o.UID),
		Labels:             o.Labels,
		Created:            o.CreationTimestamp.Time,
		Families:           families,
		FamilyPolicy:       lb.FamilyPolicy(valueOr(o.Spec.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack)),
		ClusterIPs:         ips,
		Ports:              portsOf(o),
		Local:              o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		InternalLocal:      valueOr(o.Spec.InternalTrafficPolicy, "") == corev1.ServiceInternalTrafficPolicyLocal,
		HealthPort:         uint16(o.Spec.HealthCheckNodePort),
		RequestedAddresses: addresses,
		RequestedPool:      pool,
		Wish:               wish,
		Access:             access,
		Problem:            markWaiting(badAddresses, badWish, tooLong),
		Addresses:          StatusAddresses(o),
		Record:             readRecord(o.UID, o.Status.Conditions),
		Recall:             recall(o),
		AnnouncedBy:        AnnouncedBy(o),
	}
	x.readEgress(r, object, readable, &s)
	x.readProxy(r, object, readable, &s)
	x.shareNames(&s)
	if x.ForSpeaker {
		s = withoutRequests(s)
	}
	return s
}

// withoutRequests returns a Service without what only the assignment of addresses reads, so that a change of that makes
// no difference.
func withoutRequests(s lb.Service) lb.Service {
	s.Wish = lb.Wish{Backend: s.Backend, NodeSelectors: s.NodeSelectors}
	s.FamilyPolicy = ""
	s.RequestedAddresses = nil
	s.RequestedPool = ""
	s.Recall = nil
	s.Problem = nil
	return s
}

// portsOf returns the ports that a Service declares.
func portsOf(o *corev1.Service) (ports []lb.Port) {
	for _, p := range o.Spec.Ports {
		ports = append(ports, lb.Port{
			Protocol: protocolOf(p),
			Port:     uint16(p.Port),
			NodePort: uint16(p.NodePort),
		})
	}

	return ports
}

// protocolOf returns the protocol of a port; the default is TCP.
func protocolOf(p corev1.ServicePort) string {
	return string(cmp.Or(p.Protocol, corev1.ProtocolTCP))
}

// shareNames replaces names that are substrings of long texts, which would otherwise stay in memory.
func (x serviceReader) shareNames(s *lb.Service) {
	for _, origins := range []lb.Origins{s.Record, s.Recall} {
		for i, o := range origins {
			origins[i].Pool = cmp.Or(x.names[o.Pool], o.Pool)
		}
	}
	for i, o := range s.AnnouncedBy {
		s.AnnouncedBy[i].Node = cmp.Or(x.names[o.Node], o.Node)
	}
}

// clusterIPs returns the cluster IPs of a Service, one of each family.
func clusterIPs(o *corev1.Service) []netip.Addr {
	texts := o.Spec.ClusterIPs
	if len(texts) == 0 {
		texts = []string{o.Spec.ClusterIP}
	}

	var out []netip.Addr
	for _, text := range texts {
		a, err := parseAddr(text)
		if err != nil {
			continue // "None" (headless) or "" (not allocated yet)
		}

		isSameFamily := func(b netip.Addr) bool { return a.BitLen() == b.BitLen() }
		if !slices.ContainsFunc(out, isSameFamily) {
			out = append(out, a)
		}
	}

	return out
}

// StatusAddresses returns the addresses in the status of a Service, without host names and invalid entries.
func StatusAddresses(o *corev1.Service) []netip.Addr {
	var out []netip.Addr
	for _, ingress := range o.Status.LoadBalancer.Ingress {
		a, err := parseAddr(ingress.IP)
		if err == nil && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}

	return out
}
