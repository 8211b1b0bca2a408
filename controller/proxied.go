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

// proxiedPace is the time between two changes, for each proxied Service, of what all of them say of nodes: 1,000 are
// written every minute.
const proxiedPace = 60 * time.Millisecond

// proxied is what the speakers report of the proxies.
type proxied struct {
	// serves has the Services that the proxies of each node serve; a node without a report that counts has no entry.
	serves map[string]map[lb.Key]bool
	// faults are what proxies have against the Secrets of Services: of several the first by name.
	faults map[lb.Key]lb.Reason
	// open are the nodes that do not refuse the node ports of proxied Services.
	open []string
	// text is what proxied Services say of nodes, since changed.
	text    string
	changed time.Time
	// left has the endpoints that proxies leave out.
	left map[lb.Key][]netip.AddrPort
	// looks counts the looks, and began has the last one before each Service was proxied.
	looks int
	began map[lb.Key]int
	// dropsMode: the API server left ipMode out of what was written last.
	dropsMode bool
}

// verdict is what is due for a Service.
type verdict struct {
	// Condition on proxies; its type is empty if none is due.
	metav1.Condition
	// mode: all addresses are to have ipMode Proxy. An address that is announced already has it two looks after the
	// condition, when each node leads connections to proxies: kube-proxy then takes its own way away. If the API server
	// drops the field, only a Service that is new to proxies asks for it again.
	mode bool
}

// look takes the last reports. Those of nodes that Kubernetes does not call ready may be old.
func (p *proxied) look(
	now time.Time,
	r reports,
	states []*v1beta1.SpeakerState,
	notReady map[string]bool,
	open []string,
) {
	p.serves, p.faults, p.open, p.looks = map[string]map[lb.Key]bool{}, map[lb.Key]lb.Reason{}, open, p.looks+1
	for _, s := range states {
		if notReady[s.Name] || r.stale(now, s.Name) {
			continue
		}
		served := map[lb.Key]bool{}
		for _, text := range s.Status.Proxied {
			served[lb.ParseKey(text)] = true
		}
		p.serves[s.Name] = served
		for _, f := range s.Status.ProxyFaults {
			key, fault := lb.ParseKey(f.Service), lb.Reason(f.Reason)
			if last := p.faults[key]; fault.OfProxy() && (last == "" || fault < last) {
				p.faults[key] = fault
			}
		}
	}
}

// ofSecret says what is wrong with a Secret.
var ofSecret = map[lb.Reason]string{
	lb.SecretMissing:   "is not in the namespace",
	lb.SecretForbidden: "may not be read by the proxies",
	lb.SecretWrong: "has no pair that HAProxy takes: it must be of type kubernetes.io/tls, with PEM certificates in tls.crt and an unencrypted PEM key in " +
		"tls.key, 16 KiB at most, RSA with 2048 to 4096 bits",
	lb.KeyWrong:           "has a tls.key that does not belong to the first certificate of tls.crt",
	lb.CertificateExpired: "has a certificate that expired or is not valid yet, and proxies serve it nevertheless",
}

// portTaken is about a Service of which a port is missing.
const portTaken = "proxies do not serve all ports: on a node port of the Service another program listens in a proxy's pod, mostly the " +
	"HAProxy of the namespace that had the number before; the port is served as soon as it is free"

// problems returns what keeps proxies from serving Services as they ask, as what is wrong with the Secrets of Services.
func (p *proxied) problems(services []*lb.Service) (out []lb.Problem) {
	if len(p.faults) == 0 {
		return nil // as mostly
	}
	for _, s := range services {
		fault := p.faults[s.Key]
		if fault == "" || s.Proxy == nil || s.ProxyRefused || fault.OfSecret() && s.Proxy.Secret == "" {
			continue
		}
		object := lb.Object{Kind: config.KindService, Namespace: s.Key.Namespace, Name: s.Key.Name}
		if fault == lb.ProxyPortTaken {
			out = append(out, lb.Problem{Object: object, Reason: fault, Message: portTaken})
			continue
		}
		text := "Secret " + s.Proxy.Secret + " (default-tls-container-ref) " + ofSecret[fault]
		if fault != lb.CertificateExpired {
			text += "; proxies that have had a good pair of the Service go on with it, others do not serve it, and their nodes do not announce it"
		}
		out = append(
			out,
			lb.Problem{Object: object, Reason: fault, Message: text},
		)
	}
	return out
}

// decide returns what is due for all Services, nil for nothing. Services that share an address switch together: to
// proxies when all of them ask, and the proxies of all nodes serve those whose addresses are announced already; back
// when none asks any more, for pods of the others want headers.
func (p *proxied) decide(state lb.State, assigned []*ipam.Assignment) []verdict {
	if !slices.ContainsFunc(state.Services, func(s *lb.Service) bool { return s.AsksProxy || s.ProxyRefused }) {
		return nil // as mostly
	}
	out, began := make([]verdict, len(assigned)), map[lb.Key]int{}
	services := make([]*lb.Service, len(assigned))
	for i := range services {
		s := *state.Services[i]
		s.Addresses, services[i] = assigned[i].Addresses, &s
	}
	lacks := map[lb.Key][]string{}
	for i := range services {
		if s := services[i]; s.AsksProxy && !s.Proxied && shares(state.Services[i], s) {
			lacks[s.Key] = p.lacking(state, s.Key)
		}
	}
	back := config.Sharers(services, func(s *lb.Service) bool { return !s.AsksProxy })
	stays := func(s *lb.Service) bool { return s.Proxied && !s.ProxyRefused && !s.AsksProxy && !back(s.Addresses) }
	asks := func(s *lb.Service) bool { return s.AsksProxy || s.ProxyRefused || stays(s) }
	agreed := config.Sharers(services, asks)
	ready := config.Sharers(services, func(s *lb.Service) bool { return len(lacks[s.Key]) == 0 })
	at, n := map[netip.Addr][]*lb.Service{}, 0
	for i := range services {
		s := services[i]
		for _, a := range s.Addresses {
			at[a] = append(at[a], s)
		}
		if s.AsksProxy {
			n++
		}
	}
	text := p.say(state, n)
	for i := range services {
		s := services[i]
		c := metav1.Condition{
			Type:   v1beta1.ConditionProxied,
			Status: metav1.ConditionFalse,
			Reason: string(lb.ProxyWaits),
		}
		switch {
		case s.ProxyRefused:
			c.Reason = string(lb.ProxyRefused)
		case stays(s):
			c.Status, c.Reason = metav1.ConditionTrue, string(lb.Proxied)
			asking := sharers(at, s, func(o *lb.Service) bool { return o.AsksProxy })
			c.Message = "it asks for no proxy, and leaves them when " + asking + " do so no more; " + text
		case !s.AsksProxy:
			continue
		case !agreed(s.Addresses):
			others := sharers(at, s, func(o *lb.Service) bool { return !asks(o) })
			c.Message = "waits until " + others + " ask for proxies too"
		case !ready(s.Addresses):
			c.Message = "waits until proxies serve all Services on its address" + of(lacks[s.Key])
		default:
			c.Status, c.Reason, c.Message = metav1.ConditionTrue, string(lb.Proxied), text
		}
		if left := p.left[s.Key]; len(left) > 0 {
			c.Message += fmt.Sprintf(
				"; endpoints are left out (%s): none may be loopback, link-local, multicast, a proxy's own or an address of a pool, nor "+
					"beyond the first 1000 of a port",
				lb.SomeOf(left),
			)
		}
		out[i].Condition = c
		if c.Status != metav1.ConditionTrue {
			continue
		}
		since := p.looks
		if s.Proxied {
			since = p.began[s.Key]
		}
		began[s.Key] = since
		out[i].mode = !s.Proxied && !shares(state.Services[i], s) || s.Proxied && p.looks-since >= 2 && !p.dropsMode
	}
	p.began = began
	return out
}

// sharers names the Services that are so and share an address with one.
func sharers(at map[netip.Addr][]*lb.Service, s *lb.Service, are func(*lb.Service) bool) string {
	names := map[string]bool{}
	for _, a := range s.Addresses {
		for _, other := range at[a] {
			if are(other) && other.Key.Namespace == s.Key.Namespace {
				names[other.Key.String()] = true
			} else if are(other) {
				names["some of other namespaces"] = true // tenants do not know each other
			}
		}
	}
	if len(names) == 0 {
		return "all Services that share its address through others"
	}
	return "the Services that share its address (" + lb.SomeOf(slices.Sorted(maps.Keys(names))) + ")"
}

// shares reports whether a Service has one of the addresses already that it is to have: it may be announced.
func shares(before, s *lb.Service) bool {
	return slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return slices.Contains(before.Addresses, a) })
}

// lacking returns the nodes whose proxies are ready and do not serve a Service, and an entry for none if no proxy is
// ready.
func (p *proxied) lacking(state lb.State, key lb.Key) []string {
	if len(state.ProxyNodes) == 0 {
		return []string{""}
	}
	return slices.DeleteFunc(slices.Clone(state.ProxyNodes), func(node string) bool { return p.serves[node][key] })
}

func of(nodes []string) string {
	switch {
	case len(nodes) == 0:
		return ""
	case nodes[0] == "":
		return ": none is ready"
	}
	return ": not yet on node " + lb.SomeOf(nodes)
}

// say returns what proxied Services say of nodes, and of what is lost. With many Services it changes rarely: a change
// writes all of them.
func (p *proxied) say(state lb.State, services int) string {
	nodes := state.ProxyNodes
	text := fmt.Sprintf("proxies on %d nodes serve it (%s)", len(nodes), cmp.Or(lb.SomeOf(nodes), "none is ready"))
	if len(p.open) > 0 {
		text += "; its node ports lead past them on node " + lb.SomeOf(p.open) +
			", where no speaker keeps a packet filter in force"
	}
	text += "; pods see a proxy's address as the client's, externalTrafficPolicy means nothing, and a NetworkPolicy by ipBlock sees the proxies"
	if p.text == "" || p.text != text && state.Now.Sub(p.changed) >= time.Duration(services)*proxiedPace {
		p.text, p.changed = text, state.Now
	}
	return p.text
}

// serves reports whether proxies are to serve.
func (c *verdict) serves() bool { return c != nil && c.Status == metav1.ConditionTrue }

// with completes the condition with why proxies are refused, or with what is wrong with the Secret.
func (c verdict) with(problems []lb.Problem) verdict {
	var messages []string
	reasons := []lb.Reason{lb.Reason(c.Reason)}
	for _, p := range problems {
		if p.Reason == lb.ProxyRefused {
			messages = append(messages, p.Message)
		}
		if p.Reason.OfProxy() && c.Message != "" {
			c.Message, reasons = p.Message+"; "+c.Message, append(reasons, p.Reason)
		}
	}
	if c.Reason == string(lb.ProxyRefused) {
		c.Message = strings.Join(messages, "; ")
	}
	c.Message = lb.WithRemedies(c.Message, reasons...)
	return c
}

// underProxy returns the condition on proxies, if there is one.
func (w serviceWrite) underProxy() (metav1.Condition, bool) {
	if w.proxied == nil {
		return metav1.Condition{Type: v1beta1.ConditionProxied}, false
	}
	return w.proxied.Condition, true
}
