package config

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
)

// whole is what one Service is made of.
type whole struct {
	// of is the Service; nil if there are only EndpointSlices of it.
	of     Held[corev1.Service]
	slices []endpoints
	// made is what the Service says by itself, with its endpoints once it is joined if it depends on nothing else; nil
	// if it is not ours.
	made *lb.Service
	// shown: made is in a State, and must not be changed.
	shown bool
	// claims are nil if it has none.
	claims *serviceClaims
	*more
}

// more is what few Services say: those that are not ours, have problems or depend on others.
type more struct {
	// original is the Service from whose manifest it was copied, as "namespace/name"; "" if it was not.
	original string
	// dropsID: its load balancer id does not count, as of the last run that made it; clash says what stands against
	// that id, nil for nothing.
	dropsID bool
	clash   *lb.Problem
	// refused: the controller refuses it proxies, by its status. Speakers read no namespaces, and follow that.
	refused  bool
	problems []*lb.Problem
	// leaving is what it has to give up, and reserved are addresses that another load balancer serves, if it is not
	// ours. Marked: it has something of ours.
	leaving  *lb.Leaving
	reserved []netip.Addr
	marked   bool
}

// depends reports whether other objects than its EndpointSlices decide what a Service is.
func depends(s *lb.Service) bool { return namesAnother(s) || dependsOnProxies(s) }

// namesAnother reports whether a Service has the load balancer id of another one. Its own asks for nothing.
func namesAnother(s *lb.Service) bool { return s.LoadBalancerID != "" && s.LoadBalancerID != s.UID }

func dependsOnProxies(s *lb.Service) bool { return s.Proxy != nil || s.AsksProxy || s.Proxied }

type reader struct {
	Options
	dialect *openstack.Translator
	// names of pools and nodes.
	names map[string]string
	// ranges are those of the pools, which a speaker does not need.
	ranges lb.Index[int]
}

func (x reader) compileService(key lb.Key, h Held[corev1.Service], w *whole) {
	o := h.Read()
	w.claims = x.readClaims(o)
	var m more
	if w.of, w.shown = h, false; x.Serves(o) {
		var r report
		w.made = new(x.readService(&r, key, o))
		m.original, _ = copyOf(o)
		c := apimeta.FindStatusCondition(o.Status.Conditions, v1beta1.ConditionProxied)
		m.refused, m.problems = c != nil && c.Reason == string(lb.ProxyRefused), r.problems
	} else {
		m.leaving, m.reserved = x.compileLeaving(key, o)
		m.marked = marked(o)
	}
	ours := w.made != nil && (len(m.problems) > 0 || depends(w.made))
	if w.more = nil; ours || w.made == nil && (m.leaving != nil || len(m.reserved) > 0 || m.marked) {
		w.more = &m
	}
}

// OurConditions are the conditions of a Service that go when Holdfast does not serve it. The first may stay, to say
// that its addresses were released.
var OurConditions = []string{
	v1beta1.ConditionAddressAssigned, v1beta1.ConditionAnnotationsHonoured,
	v1beta1.ConditionFiltered, v1beta1.ConditionFilterEnforced,
	v1beta1.ConditionAnnouncedL2, v1beta1.ConditionAnnouncers, v1beta1.ConditionAnnouncedBGP, v1beta1.ConditionAddressRecord,
	v1beta1.ConditionProxied, v1beta1.ConditionProxyRecord,
}

// marked reports whether anything of ours is left to clear on a Service.
func marked(o *corev1.Service) bool {
	if slices.Contains(o.Finalizers, v1beta1.FinalizerAddress) {
		return true
	}
	// A speaker may have written one of its own at the last moment.
	return slices.ContainsFunc(o.Status.Conditions, func(c metav1.Condition) bool {
		return slices.Contains(OurConditions, c.Type) || c.Type == v1beta1.ConditionWritten
	})
}

// compileLeaving returns what a Service has to give up that had addresses of ours, if there is anything, and the
// addresses of others that its status shows. The write that changes a Service's type empties its status but for the
// conditions, so the recorded addresses count too. Its source ranges hold for what its status shows; with another type
// it has lost them.
func (x reader) compileLeaving(key lb.Key, o *corev1.Service) (*lb.Leaving, []netip.Addr) {
	shown, others := x.Shown(o)
	l := &lb.Leaving{Key: key, UID: string(o.UID), Addresses: slices.Clone(shown)}
	for _, origin := range readRecord(o.UID, o.Status.Conditions) {
		if origin.Terms != lb.TermsReleased && !slices.Contains(l.Addresses, origin.Address) {
			l.Addresses = append(l.Addresses, origin.Address)
		}
	}
	if len(l.Addresses) == 0 {
		return nil, others
	}
	slices.SortFunc(l.Addresses, netip.Addr.Compare)
	if len(shown) > 0 && o.Spec.Type == corev1.ServiceTypeLoadBalancer {
		// Nobody has to mend a Service that leaves.
		l.Served = x.readService(&report{}, key, o)
		l.Served.Addresses, l.Served.Wish = shown, lb.Wish{}
	}
	return l, others
}

// others adds the Services that are not ours to a State: those that are leaving, and the addresses in the status of
// others. A Service that is being deleted is no longer served, but kube-proxy delivers its addresses until the object
// is gone, so until then they are not assigned. The same is true of Services of another load balancer, whose addresses
// may lie in our pools during a migration, and which may have been ours.
func (c *Compiler) others(s *lb.State, opt Options) {
	s.Reserved = map[netip.Addr]lb.Key{}
	if len(s.FloatingIPs) > 0 {
		s.NotServed = map[lb.Key]string{}
	}
	for key, w := range c.apart {
		if w.made == nil && s.NotServed != nil && w.of.GetDeletionTimestamp() == nil {
			s.NotServed[key] = string(w.of.GetUID())
		}
		if w.more == nil {
			continue
		}
		if w.leaving != nil {
			l := *w.leaving
			if len(l.Served.Addresses) > 0 {
				w.serve(opt, &l.Served)
			}
			s.Leaving = append(s.Leaving, l)
		}
		for _, a := range w.reserved {
			if other, taken := s.Reserved[a]; !taken || key.Compare(other) < 0 {
				s.Reserved[a] = key
			}
		}
	}
	slices.SortFunc(s.Leaving, func(a, b lb.Leaving) int { return a.Key.Compare(b.Key) })
}

// join makes the Services of which an object has changed, those to whose load balancer id something happened, and all
// that depend on proxies. It returns those of them that depend on others, in order. If follows is set the status of
// Services says which may not have proxies.
func (c *Compiler) join(r *report, opt Options, follows bool) (dependent []*lb.Service) {
	named := c.namedByID()
	for key, w := range c.apart {
		if w.more == nil || w.made == nil {
			continue
		}

		r.problems = append(r.problems, w.problems...)
		switch {
		case dependsOnProxies(w.made):
			c.touched[key] = true
		case c.touched[key] || !namesAnother(w.made):
		case w.dropsID != w.mustDropID(named):
			c.touched[key] = true
		case w.clash != nil:
			r.problems = append(r.problems, w.clash)
		}
	}
	if len(c.touched) == 0 {
		return nil
	}
	joined, rest := make([]*lb.Service, 0, len(c.joined)+len(c.touched)), c.joined
	for _, key := range slices.SortedFunc(maps.Keys(c.touched), lb.Key.Compare) {
		i, found := slices.BinarySearchFunc(rest, key, compareKey)
		if joined = append(joined, rest[:i]...); found {
			c.countPorts(rest[i], -1)
			i++
		}
		rest = rest[i:]
		w := c.whole[key]
		if w == nil || w.made == nil {
			continue
		}
		s := w.made
		if w.shown || depends(s) {
			s = new(*s)
		}
		w.serve(opt, s)
		if depends(s) {
			if w.refused && follows && s.AsksProxy {
				s.AsksProxy, s.ProxyRefused = false, true
			}
			w.joinID(r, s, named)
			dependent = append(dependent, s)
		} else {
			w.made, w.shown = s, true
		}
		c.countPorts(s, 1)
		joined = append(joined, s)
	}
	c.joined = append(joined, rest...)
	c.touched = map[lb.Key]bool{} // without the room for all that were read at first
	return dependent
}

func compareKey(s *lb.Service, k lb.Key) int { return s.Key.Compare(k) }

// keep returns Services with those of the last run in place of equal ones whose objects are the same as in that run,
// before. By their pointers others know what changed, and a Service that depends on other objects is made in every run.
func (c *Compiler) keep(before lb.Map[lb.Key, Held[corev1.Service]], services []*lb.Service) []*lb.Service {
	last := c.last

	for i, s := range services {
		for len(last) > 0 && last[0] != s && last[0].Key.Compare(s.Key) < 0 {
			last = last[1:]
		}
		if len(last) == 0 || last[0].Key != s.Key {
			continue
		}

		former := last[0]
		last = last[1:]
		if former != s && before.Of(s.Key) == c.services.Of(s.Key) && reflect.DeepEqual(former, s) {
			services[i] = former
		}
	}

	c.last = services
	return services
}

// namedByID returns the Services that others name by their ids: what it returned before while no Service changed.
func (c *Compiler) namedByID() map[string]*whole {
	if c.named != nil {
		return c.named
	}

	c.named = map[string]*whole{}
	for _, w := range c.apart {
		if w.made != nil && w.made.LoadBalancerID != "" {
			c.named[w.made.LoadBalancerID] = nil
		}
	}
	if len(c.named) == 0 {
		return c.named
	}

	for _, w := range c.whole {
		if w.of == nil {
			continue
		}
		id := string(w.of.GetUID())
		if _, isNamed := c.named[id]; isNamed {
			c.named[id] = w
		}
	}
	return c.named
}

// mustDropID reports whether nobody asked for the load balancer id of a Service: a copied manifest brought what
// Holdfast had written on its original, or a restore brought back the UID of a Service that has another one now. What a
// restored Service had is in its annotation holdfast.dev/assigned; without that an unknown id is the user's mistake.
func (w *whole) mustDropID(named map[string]*whole) bool {
	of := named[w.made.LoadBalancerID]
	isCopied := w.original != "" &&
		of != nil &&
		w.original == KeyOf(of.of).String() &&
		w.original != w.made.Key.String()

	return isCopied || len(w.made.Recall) > 0 && (of == nil || of.made == nil)
}

// joinID joins a Service, which is made of w, with the one whose id it has.
func (w *whole) joinID(r *report, s *lb.Service, named map[string]*whole) {
	if !namesAnother(s) {
		return
	}

	w.dropsID, w.clash = w.mustDropID(named), nil
	if w.dropsID {
		s.LoadBalancerID, s.MaxShared = "", 0
		return
	}
	if s.SharingKey != "" {
		object := lb.Object{Kind: KindService, Namespace: s.Key.Namespace, Name: s.Key.Name}
		w.clash = r.fault(
			object,
			lb.InvalidRequest,
			"asks to share by annotation %s and by %s, which exclude each other",
			AnnotationSharingKey,
			openstack.ID,
		)
		s.Problem = waits(s.Problem, w.clash)
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
	addresses := StatusAddresses(o)
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
	pool, _ := firstAnnotation(r, object, read, AnnotationPool, MetalLBPool, MetalLBPoolOld)
	addresses, err := readAddresses(r, object, read, families)
	var problem *lb.Problem
	if err != nil {
		pool, problem = "", r.fault(object, lb.InvalidRequest, "%v", err)
	}
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
		RequestedAddresses: addresses,
		RequestedPool:      pool,
		Wish:               wish,
		Access:             access,
		Problem:            waits(problem, unclear, long),
		Addresses:          StatusAddresses(o),
		Record:             readRecord(o.UID, o.Status.Conditions),
		Recall:             recall(o),
		AnnouncedBy:        AnnouncedBy(o),
	}
	x.readProxy(r, object, read, &s)
	x.shareNames(&s)
	return s
}

// portsOf returns the ports that a Service declares.
func portsOf(o *corev1.Service) (ports []lb.Port) {
	for _, p := range o.Spec.Ports {
		ports = append(ports, lb.Port{Protocol: protocolOf(p), Port: uint16(p.Port), NodePort: uint16(p.NodePort)})
	}
	return ports
}

// protocolOf returns the protocol of a port, which is TCP if none is written.
func protocolOf(p corev1.ServicePort) string { return string(cmp.Or(p.Protocol, corev1.ProtocolTCP)) }

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

// StatusAddresses returns the addresses in the status, without host names and
// unreadable entries.
func StatusAddresses(o *corev1.Service) []netip.Addr {
	var out []netip.Addr
	for _, ingress := range o.Status.LoadBalancer.Ingress {
		if a, err := parseAddr(ingress.IP); err == nil && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}
