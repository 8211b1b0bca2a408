package config

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
)

// servicePart is what one Service says by itself.
type servicePart struct {
	of Held[corev1.Service]
	*whole
	// Service with its endpoints once it is joined, if it stands for itself. nil if it is not ours.
	*lb.Service
	// serves: it is ours to serve. shown: Service is in a State, and must not be changed. deleting: it is being deleted.
	serves, shown, deleting bool
	// refused: the controller refuses it proxies, by its status. Speakers read no namespaces, and follow that.
	refused bool
	// original is the Service from whose manifest it was copied, as "namespace/name"; "" if it was not.
	original string
	problems []*lb.Problem
	// leaving is what it has to give up, and others are addresses that another load balancer serves, if it is not ours.
	leaving *lb.Leaving
	others  []netip.Addr
}

// reader reads Services one by one.
type reader struct {
	Options
	dialect *openstack.Translator
	// names of pools and nodes.
	names map[string]string
}

func (x reader) compileService(h Held[corev1.Service]) (lb.Key, servicePart) {
	o := h.Read()
	key := lb.Key{Namespace: o.Namespace, Name: o.Name}
	p := servicePart{of: h, serves: x.Serves(o), deleting: o.DeletionTimestamp != nil}
	if p.serves {
		var r report
		p.original, _ = copyOf(o)
		p.Service = new(x.readService(&r, key, o))
		p.problems = r.problems
		c := apimeta.FindStatusCondition(o.Status.Conditions, v1beta1.ConditionProxied)
		p.refused = c != nil && c.Reason == string(lb.ProxyRefused)
		return key, p
	}
	shown, others := x.Shown(o)
	p.leaving, p.others = x.compileLeaving(key, o, shown), others
	return key, p
}

// compileLeaving returns what a Service has to give up that had addresses of ours, with those that its status shows. The write
// that changes a Service's type empties its status but for the conditions, so the recorded addresses count too. Its source
// ranges hold for what its status shows; with another type it has lost them.
func (x reader) compileLeaving(key lb.Key, o *corev1.Service, shown []netip.Addr) *lb.Leaving {
	l := &lb.Leaving{Key: key, UID: string(o.UID), Addresses: slices.Clone(shown)}
	if len(shown) > 0 && o.Spec.Type == corev1.ServiceTypeLoadBalancer {
		// Nobody has to mend a Service that leaves.
		l.Served = x.readService(&report{}, key, o)
		l.Served.Addresses, l.Served.Wish = shown, lb.Wish{}
	}
	for _, origin := range readRecord(o.UID, o.Status.Conditions) {
		if origin.Terms != lb.TermsReleased && !slices.Contains(l.Addresses, origin.Address) {
			l.Addresses = append(l.Addresses, origin.Address)
		}
	}
	slices.SortFunc(l.Addresses, netip.Addr.Compare)
	return l
}

// joined are the Services with what depends on other objects: ours, ordered by key, those that are leaving, and
// the addresses in the status of others. A Service that is being deleted is no longer
// served, but kube-proxy delivers its addresses until the object is gone, so until
// then they are not assigned. The same is true of Services of another load balancer,
// whose addresses may lie in our pools during a migration, and which may have been ours.
type joined struct {
	report   *report
	ours     []*lb.Service
	leaving  []lb.Leaving
	reserved map[netip.Addr]lb.Key
	// follows: the status of Services says which may not have proxies.
	follows bool
	// proxies are where proxies serve.
	proxies endpoints
	// plain: each Service stands for itself, and they were ordered.
	plain bool
	// notServed are the UIDs of existing Services that are not ours to serve; nil if nobody reads them.
	notServed map[lb.Key]string
	// others are not ours.
	others []*part[servicePart]
}

// join takes Services, which may be ordered by key; those of the proxies are of proxies.
func (j *joined) join(services []*part[servicePart], ordered bool, proxies *whole) {
	if j.plain = ordered; !ordered {
		services = slices.SortedFunc(slices.Values(services), func(a, b *part[servicePart]) int { return a.key.Compare(b.key) })
	}
	named := namedByID(services)
	j.proxies = proxies.endpoints()
	j.ours = make([]*lb.Service, 0, len(services))
	for _, p := range services {
		if p.made.serves {
			j.report.problems = append(j.report.problems, p.made.problems...)
			j.ours = append(j.ours, j.service(&p.made, named))
			continue
		}
		j.others = append(j.others, p)
		if j.notServed != nil && !p.made.deleting {
			j.notServed[p.key] = string(p.made.of.GetUID())
		}
		e := p.made.endpoints()
		if p.made.leaving != nil && len(p.made.leaving.Addresses) > 0 {
			l := *p.made.leaving
			if len(l.Served.Addresses) > 0 {
				l.Served.ServingNodes, l.Served.Serving, l.Served.ServingAnywhere = e.nodes, e.serving, e.anywhere
			}
			j.leaving = append(j.leaving, l)
		}
		j.reserve(p.key, p.made.others)
	}
}

// service returns a Service with its endpoints: as before, unless an object has changed, or others may decide.
func (j *joined) service(p *servicePart, named map[string]*part[servicePart]) *lb.Service {
	if p.joined {
		return p.Service
	}
	e, s, refused := p.endpoints(), p.Service, p.refused && j.follows && p.AsksProxy
	alone := s.LoadBalancerID == "" && s.Proxy == nil && (refused || !s.AsksProxy) && !s.Proxied
	if p.shown || !alone {
		s = new(*s)
	}
	s.ServingNodes, s.Serving, s.ServingAnywhere = e.nodes, e.serving, e.anywhere
	if refused {
		s.AsksProxy, s.ProxyRefused = false, true
	}
	if alone {
		p.joined, p.shown, p.Service = true, true, s
		return s
	}
	j.plain = false
	j.joinID(s, p.original, named)
	return s
}

// namedByID returns the Services that others name by their ids.
func namedByID(services []*part[servicePart]) map[string]*part[servicePart] {
	named := map[string]*part[servicePart]{}
	for _, p := range services {
		if p.made.serves && p.made.LoadBalancerID != "" {
			named[p.made.LoadBalancerID] = nil
		}
	}
	if len(named) == 0 {
		return nil // as mostly
	}
	for _, p := range services {
		uid := string(p.made.of.GetUID())
		if _, is := named[uid]; is {
			named[uid] = p
		}
	}
	return named
}

// joinID drops a load balancer id that nobody asked for: a copied manifest brought what Holdfast had written on its
// original, or a restore brought back the UID of a Service that has another one now. What a restored Service had is in its
// annotation holdfast.dev/assigned; without that an unknown id is the user's mistake.
func (j *joined) joinID(s *lb.Service, original string, named map[string]*part[servicePart]) {
	if s.LoadBalancerID == "" {
		return
	}
	of := named[s.LoadBalancerID]
	copied := of != nil && original == of.key.String() && original != s.Key.String()
	if copied || len(s.Recall) > 0 && (of == nil || !of.made.serves) {
		s.LoadBalancerID, s.MaxShared = "", 0
		return
	}
	if s.SharingKey != "" && s.LoadBalancerID != s.UID {
		object := lb.Object{Kind: KindService, Namespace: s.Key.Namespace, Name: s.Key.Name}
		s.Problem = waits(s.Problem, j.report.fault(object, lb.InvalidRequest, "asks to share by annotation %s and by %s: remove one of the two",
			AnnotationSharingKey, openstack.ID))
	}
}

func (j *joined) reserve(key lb.Key, addresses []netip.Addr) {
	for _, a := range addresses {
		if other, taken := j.reserved[a]; !taken || key.Compare(other) < 0 {
			j.reserved[a] = key
		}
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

func (x reader) readService(r *report, key lb.Key, o *corev1.Service) lb.Service {
	object := lb.Object{Kind: KindService, Namespace: key.Namespace, Name: key.Name}
	ips := clusterIPs(o)
	// kube-proxy translates to the cluster IPs; until they are allocated spec.ipFamilies is only a request.
	var families []lb.Family
	for _, a := range ips {
		families = append(families, lb.FamilyOf(a))
	}
	read, long := bounded(r, object, o, x.Options)
	asked, problem := readRequest(r, object, read, families)
	access := x.readAccess(r, object, read)
	wish, unclear := x.readWish(r, object, read)
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
		RequestedAddresses: asked.addresses,
		RequestedPool:      asked.pool,
		Wish:               wish,
		Access:             access,
		Problem:            waits(problem, unclear, long),
		Addresses:          statusAddresses(o),
		Record:             readRecord(o.UID, o.Status.Conditions),
		Recall:             recall(o),
		AnnouncedBy:        AnnouncedBy(o),
	}
	x.readProxy(r, object, read, &s)
	x.shareNames(&s)
	return s
}

// shareNames replaces names that are parts of long texts, which would be kept for them.
func (x reader) shareNames(s *lb.Service) {
	for _, origins := range []lb.Origins{s.Record, s.Recall} {
		for i, o := range origins {
			origins[i].Pool = cmp.Or(x.names[o.Pool], o.Pool)
		}
	}
	for i, o := range s.AnnouncedBy {
		s.AnnouncedBy[i].Node = cmp.Or(x.names[o.Node], o.Node)
	}
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

func portsOf(o *corev1.Service) []lb.Port {
	var out []lb.Port
	for _, p := range o.Spec.Ports {
		out = append(out, lb.Port{Protocol: string(cmp.Or(p.Protocol, corev1.ProtocolTCP)), Port: uint16(p.Port), NodePort: uint16(p.NodePort)})
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
