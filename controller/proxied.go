package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/config"
	"github.com/holdfast-lb/holdfast/internal/ipam"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// proxiedInterval is the time between two changes of the text about nodes, for each proxied Service. A change writes
// all of them: 1,000 Services are written every minute at most.
const proxiedInterval = 60 * time.Millisecond

// proxyView is what the speakers report of the proxies.
type proxyView struct {
	// serves has the Services that the proxies of each node serve. A node without a valid report has no entry.
	serves map[string]map[lb.Key]bool
	// faults has a fault of each Service that proxies report; of several the first by name.
	faults map[lb.Key]lb.Reason
	// openNodes are the nodes that do not refuse the node ports of proxied Services.
	openNodes []string
	// text is the message of proxied Services about nodes.
	text string
	// changed is the time of the last change of text.
	changed time.Time
	// leftOut has the endpoints that proxies leave out.
	leftOut map[lb.Key][]netip.AddrPort
	// observations counts the calls of observe.
	observations int
	// began has the number of the last observation before each Service was proxied.
	began map[lb.Key]int
	// dropsProxyMode reports whether the API server dropped the field ipMode from the last write.
	dropsProxyMode bool
	// groups are the sharing groups of the last decision. They only make the next one faster.
	groups lb.Groups
}

// proxyCondition is the condition on proxies of a Service. Its type is empty if the Service has none.
type proxyCondition struct {
	metav1.Condition
	// wantsProxyMode reports whether all addresses should have ipMode Proxy, which makes kube-proxy stop delivering to
	// them by itself. An address that is announced already gets it two observations after the condition, when each node
	// sends connections to proxies. If the API server drops the field, only a Service that is new to proxies asks for
	// it again.
	wantsProxyMode bool
}

// observe takes the last reports. The reports of nodes that Kubernetes does not call ready may be old.
func (p *proxyView) observe(
	at time.Time,
	r reportTimes,
	states []*v1beta1.SpeakerState,
	notReady map[string]bool,
	openNodes []string,
) {
	p.serves = map[string]map[lb.Key]bool{}
	p.faults = map[lb.Key]lb.Reason{}
	p.openNodes = openNodes
	p.observations++

	for _, s := range states {
		if notReady[s.Name] || r.isStale(at, s.Name) {
			continue
		}

		served := map[lb.Key]bool{}
		for _, text := range s.Status.Proxied {
			key := lb.ParseKey(text)
			served[key] = true
		}

		p.serves[s.Name] = served

		for _, f := range s.Status.ProxyFaults {
			p.addFault(lb.ParseKey(f.Service), lb.Reason(f.Reason))
		}
	}
}

// addFault records a fault of a Service, unless another one with an earlier name is recorded.
func (p *proxyView) addFault(key lb.Key, fault lb.Reason) {
	if !fault.OfProxy() {
		return
	}

	last := p.faults[key]
	if last == "" || fault < last {
		p.faults[key] = fault
	}
}

// secretFaults has the messages about the Secret of a Service.
var secretFaults = map[lb.Reason]string{
	lb.SecretMissing:   "is not in the namespace",
	lb.SecretForbidden: "may not be read by the proxies",
	lb.SecretWrong: "has no pair that HAProxy takes: it must be of type kubernetes.io/tls, with PEM certificates in " +
		"tls.crt and an unencrypted PEM key in tls.key, 16 KiB at most, RSA with 2048 to 4096 bits",
	lb.KeyWrong:           "has a tls.key that does not belong to the first certificate of tls.crt",
	lb.CertificateExpired: "has a certificate that expired or is not valid yet, and proxies serve it nevertheless",
}

// portTakenText is the message about a Service with a port on which proxies cannot listen.
const portTakenText = "proxies do not serve all ports: on a node port of the Service another program listens in a " +
	"proxy's pod, usually the HAProxy of the namespace that had the number before; " +
	"the port is served as soon as it is free"

// problems returns the faults that keep proxies from serving Services as requested, such as faults of their Secrets.
func (p *proxyView) problems(services []*lb.Service) (out []lb.Problem) {
	if len(p.faults) == 0 {
		return nil
	}

	for _, s := range services {
		fault := p.faults[s.Key]
		if fault == "" || s.Proxy == nil || s.ProxyRefused {
			continue
		}

		isObsolete := fault.OfSecret() && s.Proxy.Secret == ""
		if isObsolete {
			continue
		}

		out = append(out, lb.Problem{
			Object:  config.ServiceObject(s.Key),
			Reason:  fault,
			Message: faultText(s, fault),
		})
	}

	return out
}

// faultText returns the message about a fault.
func faultText(s *lb.Service, fault lb.Reason) string {
	if fault == lb.ProxyPortTaken {
		return portTakenText
	}

	text := "Secret " + s.Proxy.Secret + " (default-tls-container-ref) " + secretFaults[fault]
	if fault != lb.CertificateExpired {
		text += "; proxies that have had a good pair of the Service continue with it, others do not serve it, " +
			"and their nodes do not announce it"
	}

	return text
}

// proxyDecision decides about the proxies of all Services. Its Services have the assigned addresses.
type proxyDecision struct {
	services []*lb.Service
	groups   *lb.Groups
	// missing has the nodes whose proxies do not serve a Service yet.
	missing map[lb.Key][]string

	// mayLeave reports whether no Service that shares some addresses asks for proxies.
	mayLeave func([]netip.Addr) bool
	// haveAgreed reports whether all Services that share some addresses accept proxies.
	haveAgreed func([]netip.Addr) bool
	// areReady reports whether the proxies of all nodes serve all Services that share some addresses.
	areReady func([]netip.Addr) bool
}

// decide returns the conditions of all Services; nil if no Service has one.
//
// Services that share an address switch together. They switch to proxies when all of them ask for proxies, and the
// proxies of all nodes serve those whose addresses are announced already. They switch back when none of them asks any
// more, because the pods of the others expect the headers of proxies.
func (p *proxyView) decide(state lb.State, assigned []*ipam.Assignment) []proxyCondition {
	isConcerned := func(s *lb.Service) bool { return s.AsksProxy || s.ProxyRefused }
	if !slices.ContainsFunc(state.Services, isConcerned) {
		p.groups = lb.Groups{}
		return nil
	}

	d := p.newDecision(state, assigned)
	text := p.nodesText(state, d.countAsking())

	out := make([]proxyCondition, len(assigned))
	before := p.began
	p.began = map[lb.Key]int{}

	for i, s := range d.services {
		c, ok := d.condition(s, text)
		if !ok {
			continue
		}

		c.Message += leftOutText(p.leftOut[s.Key])
		out[i].Condition = c
		if c.Status != metav1.ConditionTrue {
			continue
		}

		if s.Proxied {
			since := before[s.Key]
			p.began[s.Key] = since
			out[i].wantsProxyMode = p.observations-since >= 2 && !p.dropsProxyMode
		} else {
			p.began[s.Key] = p.observations
			out[i].wantsProxyMode = !keepsAddress(state.Services[i], s)
		}
	}

	return out
}

// leftOutText returns the message about endpoints that proxies leave out, to be appended to another; "" for none.
func leftOutText(endpoints []netip.AddrPort) string {
	if len(endpoints) == 0 {
		return ""
	}
	return fmt.Sprintf("; endpoints are left out (%s): none may be loopback, link-local, multicast, "+
		"a proxy's own or an address of a pool, nor beyond the first 1000 of a port", lb.SomeOf(endpoints))
}

// newDecision returns a decision about Services with the assigned addresses.
func (p *proxyView) newDecision(state lb.State, assigned []*ipam.Assignment) *proxyDecision {
	d := &proxyDecision{
		services: make([]*lb.Service, len(assigned)),
		groups:   &p.groups,
		missing:  map[lb.Key][]string{},
	}
	for i, a := range assigned {
		before := state.Services[i]
		s := before
		if !slices.Equal(before.Addresses, a.Addresses) {
			s = new(*before)
			s.Addresses = a.Addresses
		}

		d.services[i] = s

		isStarting := s.AsksProxy && !s.Proxied
		if isStarting && keepsAddress(before, s) {
			d.missing[s.Key] = p.missingNodes(state, s.Key)
		}
	}

	asksNone := func(s *lb.Service) bool { return !s.AsksProxy }
	isServed := func(s *lb.Service) bool {
		return len(d.missing[s.Key]) == 0
	}
	d.groups.Form(d.services, nil)
	d.mayLeave = d.groups.Agreeing(asksNone)
	d.haveAgreed = d.groups.Agreeing(d.acceptsProxy)
	d.areReady = d.groups.Agreeing(isServed)
	return d
}

// countAsking returns the number of Services that ask for proxies.
func (d *proxyDecision) countAsking() int {
	n := 0
	for _, s := range d.services {
		if s.AsksProxy {
			n++
		}
	}

	return n
}

// mustStay reports whether a Service asks for no proxies any more, but keeps them because of others on its addresses.
func (d *proxyDecision) mustStay(s *lb.Service) bool {
	isLeaving := s.Proxied && !s.ProxyRefused && !s.AsksProxy
	return isLeaving && !d.mayLeave(s.Addresses)
}

// acceptsProxy reports whether a Service does not keep others on its addresses from being proxied.
func (d *proxyDecision) acceptsProxy(s *lb.Service) bool {
	return s.AsksProxy || s.ProxyRefused || d.mustStay(s)
}

// condition returns the condition of a Service, and reports whether it has one. text is the message about nodes.
func (d *proxyDecision) condition(s *lb.Service, text string) (metav1.Condition, bool) {
	c := metav1.Condition{
		Type:   v1beta1.ConditionProxied,
		Status: metav1.ConditionFalse,
		Reason: string(lb.ProxyWaits),
	}
	switch {
	case s.ProxyRefused:
		c.Reason = string(lb.ProxyRefused)
	case d.mustStay(s):
		others := d.sharersText(s, func(o *lb.Service) bool {
			return o.AsksProxy
		})
		c.Status = metav1.ConditionTrue
		c.Reason = string(lb.Proxied)
		c.Message = "it asks for no proxy, and leaves them once " + others + " no longer ask either; " + text
	case !s.AsksProxy:
		return c, false
	case !d.haveAgreed(s.Addresses):
		others := d.sharersText(s, func(o *lb.Service) bool {
			return !d.acceptsProxy(o)
		})
		c.Message = "waits until " + others + " ask for proxies too"
	case !d.areReady(s.Addresses):
		c.Message = "waits until proxies serve all Services on its address" + onNodesText(d.missing[s.Key])
	default:
		c.Status = metav1.ConditionTrue
		c.Reason = string(lb.Proxied)
		c.Message = text
	}

	return c, true
}

// sharersText names the Services that match and share an address with s.
func (d *proxyDecision) sharersText(s *lb.Service, matches func(*lb.Service) bool) string {
	names := map[string]bool{}
	for _, a := range s.Addresses {
		group := d.groups.At(a)
		for _, i := range group.Holders(a) {
			other := group.Services[i]
			switch {
			case !matches(other):
			case other.Key.Namespace == s.Key.Namespace:
				names[other.Key.String()] = true
			default:
				names["some of other namespaces"] = true // tenants must not learn names of others
			}
		}
	}
	if len(names) == 0 {
		return "all Services that share its address through others"
	}

	sorted := slices.Sorted(maps.Keys(names))
	return "the Services that share its address (" + lb.SomeOf(sorted) + ")"
}

// keepsAddress reports whether a Service already has one of its assigned addresses, which may be announced.
func keepsAddress(before, s *lb.Service) bool {
	return slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool {
		return slices.Contains(before.Addresses, a)
	})
}

// missingNodes returns the nodes whose proxies are ready but do not serve a Service. It returns "" alone if no proxy is
// ready.
func (p *proxyView) missingNodes(state lb.State, key lb.Key) []string {
	if len(state.ProxyNodes) == 0 {
		return []string{""}
	}

	var missing []string
	for _, node := range state.ProxyNodes {
		if !p.serves[node][key] {
			missing = append(missing, node)
		}
	}

	return missing
}

// onNodesText names the nodes that missingNodes returned.
func onNodesText(nodes []string) string {
	switch {
	case len(nodes) == 0:
		return ""
	case nodes[0] == "":
		return ": none is ready"
	}

	return ": not yet on node " + lb.SomeOf(nodes)
}

// nodesText returns the message of proxied Services about nodes, and about what they lose by proxies. services is the
// number of Services that ask for proxies. The more there are, the more rarely the text changes, since a change writes
// all of them.
func (p *proxyView) nodesText(state lb.State, services int) string {
	nodes := state.ProxyNodes
	names := cmp.Or(lb.SomeOf(nodes), "none is ready")
	text := fmt.Sprintf("proxies on %d nodes serve it (%s)", len(nodes), names)
	if len(p.openNodes) > 0 {
		text += "; its node ports bypass them on node " + lb.SomeOf(p.openNodes) +
			", where no speaker keeps a packet filter in force"
	}

	text += "; pods see a proxy's address as the client's, externalTrafficPolicy has no effect, " +
		"and a NetworkPolicy by ipBlock sees the proxies"

	isDue := state.Now.Sub(p.changed) >= time.Duration(services)*proxiedInterval
	hasChanged := p.text != text
	if p.text == "" || hasChanged && isDue {
		p.text = text
		p.changed = state.Now
	}

	return p.text
}

// isServing reports whether proxies serve the Service. It may be called for nil.
func (c *proxyCondition) isServing() bool {
	return c != nil && c.Status == metav1.ConditionTrue
}

// withProblems returns the condition with the reasons why proxies are refused, or the faults that proxies report.
func (c proxyCondition) withProblems(problems []lb.Problem) metav1.Condition {
	var refusals []string
	reasons := []lb.Reason{lb.Reason(c.Reason)}
	for _, p := range problems {
		if p.Reason == lb.ProxyRefused {
			refusals = append(refusals, p.Message)
		}
		if p.Reason.OfProxy() && c.Message != "" {
			c.Message = p.Message + "; " + c.Message
			reasons = append(reasons, p.Reason)
		}
	}

	if c.Reason == string(lb.ProxyRefused) {
		c.Message = strings.Join(refusals, "; ")
	}

	c.Message = lb.WithRemedies(c.Message, reasons...)
	return c.Condition
}
