package config

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Annotations by which a Service asks for proxies; each works with the prefix of OpenStack's annotations too, but for
// the first.
const (
	// AnnotationDataPath "Proxy" makes proxies serve the Service.
	AnnotationDataPath = "holdfast.dev/data-path"
	// AnnotationProxyProtocol "true", "v1" or "v2" makes proxies serve the Service, and send its pods a header with the
	// client's address.
	AnnotationProxyProtocol = "holdfast.dev/proxy-protocol"
	// AnnotationXForwardedFor "true" makes proxies serve the Service as HTTP, and append the client's address to
	// X-Forwarded-For.
	AnnotationXForwardedFor = "holdfast.dev/x-forwarded-for"
	// AnnotationDefaultTLSContainerRef "secret:NAME" makes proxies serve the Service and end TLS, with a
	// kubernetes.io/tls Secret of the Service's namespace; then it is HTTP, but for one with proxy-protocol.
	AnnotationDefaultTLSContainerRef = "holdfast.dev/default-tls-container-ref"
)

// Annotations that set how proxies serve a Service that asks for them; each works with the prefix of OpenStack's
// annotations too.
const (
	// AnnotationLBMethod chooses among the pods: ROUND_ROBIN, LEAST_CONNECTIONS, SOURCE_IP or SOURCE_IP_PORT.
	AnnotationLBMethod = "holdfast.dev/lb-method"
	// AnnotationTimeoutClientData is after how many milliseconds without a byte of the client a connection ends.
	AnnotationTimeoutClientData = "holdfast.dev/timeout-client-data"
	// AnnotationTimeoutMemberData is after how many milliseconds without a byte of the pod a connection ends.
	AnnotationTimeoutMemberData = "holdfast.dev/timeout-member-data"
	// AnnotationTimeoutMemberConnect is how many milliseconds a proxy waits for a connection to a pod.
	AnnotationTimeoutMemberConnect = "holdfast.dev/timeout-member-connect"
	// AnnotationTimeoutTCPInspect is how many milliseconds a proxy waits for a client's first bytes before it chooses a
	// pod.
	AnnotationTimeoutTCPInspect = "holdfast.dev/timeout-tcp-inspect"
	// AnnotationEnableHealthMonitor "true" makes the proxies check the pods.
	AnnotationEnableHealthMonitor = "holdfast.dev/enable-health-monitor"
	// AnnotationHealthMonitorDelay is the number of seconds between two checks.
	AnnotationHealthMonitorDelay = "holdfast.dev/health-monitor-delay"
	// AnnotationHealthMonitorTimeout is how many seconds a check may take, fewer than between two.
	AnnotationHealthMonitorTimeout = "holdfast.dev/health-monitor-timeout"
	// AnnotationHealthMonitorMaxRetries is after how many good checks a pod serves again.
	AnnotationHealthMonitorMaxRetries = "holdfast.dev/health-monitor-max-retries"
	// AnnotationHealthMonitorMaxRetriesDown is after how many bad checks a pod does not serve.
	AnnotationHealthMonitorMaxRetriesDown = "holdfast.dev/health-monitor-max-retries-down"
)

const (
	ownPrefix = "holdfast.dev/"
	// idleDefault is after how many milliseconds Octavia ends idle connections.
	idleDefault = 50_000
	needsProxy  = "only a proxy could do it"
	byReadiness = "readiness of the pods decides here, at once"
)

// setting is one annotation that proxies know, by its name behind the prefix.
type setting struct {
	key string
	// name is the key without its prefix, and keys are both spellings.
	name    string
	keys    []string
	trigger bool
	// words are its values if it is no number from min to max.
	words    []string
	min, max int64
	// initial is the default; "" is none.
	initial string
	unit    string
	// unmet is why it has no effect without a proxy.
	unmet string
}

func number(key string, min, max int64, initial, unit, unmet string) setting {
	return setting{key: key, min: min, max: max, initial: initial, unit: unit, unmet: unmet}
}

// settings in the order of the record.
var settings = spelled(
	setting{key: AnnotationDataPath, trigger: true, words: []string{"Proxy"}},
	setting{key: AnnotationProxyProtocol, trigger: true, words: []string{"true", "v1", "v2", "false"}},
	setting{key: AnnotationXForwardedFor, trigger: true, words: []string{"true", "false"}},
	setting{key: AnnotationDefaultTLSContainerRef, trigger: true},
	setting{
		key: AnnotationLBMethod,
		words: []string{
			string(lb.RoundRobin),
			string(lb.LeastConnections),
			string(lb.SourceIP),
			string(lb.SourceIPPort),
		},
		initial: string(lb.RoundRobin),
		unmet:   "kube-proxy chooses the pod",
	},
	number(AnnotationTimeoutClientData, 1, math.MaxInt32, "50000", "milliseconds", needsProxy),
	number(AnnotationTimeoutMemberData, 1, math.MaxInt32, "50000", "milliseconds", needsProxy),
	number(AnnotationTimeoutMemberConnect, 1, math.MaxInt32, "5000", "milliseconds", needsProxy),
	number(AnnotationTimeoutTCPInspect, 0, math.MaxInt32, "0", "milliseconds", needsProxy),
	setting{key: AnnotationEnableHealthMonitor, words: []string{"true", "false"}, initial: "false"},
	number(AnnotationHealthMonitorDelay, 1, 3600, "5", "seconds", byReadiness),
	number(AnnotationHealthMonitorTimeout, 1, 3600, "3", "seconds", byReadiness),
	number(AnnotationHealthMonitorMaxRetries, 1, 10, "1", "checks", byReadiness),
	number(AnnotationHealthMonitorMaxRetriesDown, 1, 10, "3", "checks", byReadiness),
)

func spelled(all ...setting) []setting {
	for i := range all {
		s := &all[i]
		s.name = strings.TrimPrefix(s.key, ownPrefix)
		if s.keys = []string{s.key, openstack.Prefix + s.name}; s.key == AnnotationDataPath {
			s.keys = s.keys[:1]
		}
	}
	return all
}

// refuses says what to write in place of a value, "" if it can be read. A value that is accepted has no spaces.
func (s *setting) refuses(value string) string {
	switch {
	case s.key == AnnotationDefaultTLSContainerRef:
		name, isSecret := strings.CutPrefix(value, "secret:")
		switch {
		case isSecret && strings.Contains(name, "/"):
			return `it takes "secret:NAME" of a Secret in the Service's own namespace`
		case !isSecret || len(validation.IsDNS1123Subdomain(name)) > 0:
			return `it takes "secret:NAME" of a kubernetes.io/tls Secret in the Service's namespace`
		}
	case s.words != nil:
		if !slices.Contains(s.words, value) {
			return "it takes " + strings.Join(s.words, " or ")
		}
	default:
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < s.min || n > s.max || strconv.FormatInt(n, 10) != value {
			return fmt.Sprintf("it takes %s from %d to %d", s.unit, s.min, s.max)
		}
	}
	return ""
}

// values are accepted values by the keys of their settings.
type values map[string]string

func (v values) duration(key string, unit time.Duration) time.Duration {
	return time.Duration(v.count(key)) * unit
}

func (v values) count(key string) int {
	n, _ := strconv.Atoi(v[key]) // it was accepted
	return n
}

// triggers reports whether any of them asks for proxies.
func (v values) triggers() bool {
	return v[AnnotationDataPath] != "" ||
		v.header() > 0 ||
		v[AnnotationXForwardedFor] == "true" ||
		v[AnnotationDefaultTLSContainerRef] != ""
}

// header is the version of the PROXY protocol's header, of which OpenStack's "true" is the first.
func (v values) header() int {
	return map[string]int{"true": 1, "v1": 1, "v2": 2}[v[AnnotationProxyProtocol]]
}

// monitorFault says that a check may not take as long as the time between two.
func (v values) monitorFault() string {
	if timeout, delay := v.count(AnnotationHealthMonitorTimeout), v.count(AnnotationHealthMonitorDelay); timeout >= delay {
		return fmt.Sprintf(
			"the timeout of health checks (health-monitor-timeout, %d s) is not below their delay (health-monitor-delay, %d s)",
			timeout,
			delay,
		)
	}
	return ""
}

// proxy returns the values, with the defaults, as one value. Session affinity of the Service means SOURCE_IP.
func (opt Options) proxy(v values, affinity bool) *lb.Proxy {
	v = opt.withDefaults(v)
	p := &lb.Proxy{
		Header:  v.header(),
		HTTP:    v[AnnotationXForwardedFor] == "true",
		Method:  lb.Method(v[AnnotationLBMethod]),
		Secret:  strings.TrimPrefix(v[AnnotationDefaultTLSContainerRef], "secret:"),
		Client:  v.duration(AnnotationTimeoutClientData, time.Millisecond),
		Member:  v.duration(AnnotationTimeoutMemberData, time.Millisecond),
		Connect: v.duration(AnnotationTimeoutMemberConnect, time.Millisecond),
		Inspect: v.duration(AnnotationTimeoutTCPInspect, time.Millisecond),
	}
	if opt.Proxy.MaxIdle > 0 {
		p.Client = min(p.Client, opt.Proxy.MaxIdle)
		p.Member = min(p.Member, opt.Proxy.MaxIdle)
	}
	if affinity {
		p.Method = lb.SourceIP
	}
	if v[AnnotationEnableHealthMonitor] == "true" {
		p.Monitor = &lb.Monitor{
			Delay:   v.duration(AnnotationHealthMonitorDelay, time.Second),
			Timeout: v.duration(AnnotationHealthMonitorTimeout, time.Second),
			Rise:    v.count(AnnotationHealthMonitorMaxRetries),
			Fall:    v.count(AnnotationHealthMonitorMaxRetriesDown),
		}
	}
	return p
}

// setDefaults reads settings separated by commas.
func (p *ProxyOptions) setDefaults(text string) error {
	p.Defaults = map[string]string{}
	for item := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		if name == "" {
			continue
		}
		i := slices.IndexFunc(settings, func(s setting) bool { return s.name == name && !s.trigger })
		if i < 0 {
			return fmt.Errorf("%q is no setting", name)
		}
		if fault := settings[i].refuses(value); fault != "" {
			return fmt.Errorf("%s=%q: %s", name, value, fault)
		}
		p.Defaults[name] = value
	}
	opt := Options{Proxy: *p}
	if fault := opt.withDefaults(nil).monitorFault(); fault != "" {
		return errors.New(fault)
	}
	return nil
}

// withDefaults returns the values, and a default for each setting that they lack.
func (opt Options) withDefaults(v values) values {
	out := values{}
	for i := range settings {
		s := &settings[i]
		if value := cmp.Or(v[s.key], opt.Proxy.Defaults[s.name], s.initial); value != "" {
			out[s.key] = value
		}
	}
	return out
}

type asked struct {
	// values are those accepted.
	values
	// faults say which cannot be read, and what to write.
	faults []string
	// keys are the annotations that were given, by the keys of their settings.
	keys map[string]string
}

// readSettings reads what a Service asks of proxies. What cannot be read stays as the record has it; without a record
// it is absent.
func (opt Options) readSettings(r *report, object lb.Object, o *corev1.Service) asked {
	var a asked
	if len(o.Annotations) == 0 {
		return a
	}
	var record values
	keep := func(key string) {
		if record == nil {
			record = readProxyRecord(o.UID, o.Status.Conditions)
		}
		a.values[key] = record[key]
	}
	for i := range settings {
		s := &settings[i]
		value, key := firstAnnotation(r, object, o, s.keys...)
		if value == "" {
			continue
		}
		if a.keys == nil {
			a.values, a.keys = values{}, map[string]string{}
		}
		a.keys[s.key] = key
		if fault := s.refuses(value); fault != "" {
			a.faults = append(a.faults, fmt.Sprintf("annotation %s (%.60q) is not in force: %s", key, value, fault))
			keep(s.key)
			continue
		}
		a.values[s.key] = value
	}
	if a.keys == nil {
		return a // as mostly
	}
	if a.header() > 0 && a.values[AnnotationXForwardedFor] == "true" {
		a.faults = append(a.faults, fmt.Sprintf("annotations %s (%q) and %s (%q) exclude each other",
			a.keys[AnnotationProxyProtocol],
			a.values[AnnotationProxyProtocol], a.keys[AnnotationXForwardedFor], a.values[AnnotationXForwardedFor]))
		keep(AnnotationProxyProtocol)
		keep(AnnotationXForwardedFor)
	}
	if fault := opt.withDefaults(a.values).monitorFault(); fault != "" {
		a.faults = append(a.faults, fault)
		keep(AnnotationHealthMonitorDelay)
		keep(AnnotationHealthMonitorTimeout)
	}
	return a
}

// readProxy reads how proxies are to serve a Service, and reports what is not in force.
func (opt Options) readProxy(r *report, object lb.Object, o *corev1.Service, s *lb.Service) {
	a := opt.readSettings(r, object, o)
	for _, fault := range a.faults {
		r.fault(object, lb.InvalidRequest, "%s", fault)
	}
	affinity := o.Spec.SessionAffinity == corev1.ServiceAffinityClientIP
	s.Proxied = opt.Proxies() && hasProxied(o)
	if !opt.Proxies() || !a.triggers() {
		if !s.Proxied {
			if notes := opt.withoutProxy(a, affinity); len(notes) > 0 {
				r.note(object, lb.AnnotationIgnored, "%s", strings.Join(notes, "; "))
			}
			return
		}
		// It leaves with what it had; one that stays for its sharers then has no record.
		v := readProxyRecord(o.UID, o.Status.Conditions)
		if len(v) == 0 {
			v = a.values
		}
		s.Proxy = opt.proxy(v, affinity)
		return
	}
	if why := unmet(o); why != "" {
		s.ProxyRefused = true
		r.fault(object, lb.ProxyRefused, "%s", why)
	} else {
		s.AsksProxy = true
	}
	s.Proxy = opt.proxy(a.values, affinity)
	if longest := max(
		a.values.duration(AnnotationTimeoutClientData, time.Millisecond),
		a.values.duration(AnnotationTimeoutMemberData, time.Millisecond),
	); opt.Proxy.MaxIdle > 0 && longest > opt.Proxy.MaxIdle {
		r.note(object, lb.AnnotationIgnored, "an idle connection may last %s, and not %s (proxy.maxIdleSeconds of the chart)",
			opt.Proxy.MaxIdle, longest)
	}
}

// unmet says why a Service that asks for proxies may have none, "" if it may.
func unmet(o *corev1.Service) string {
	const until = ": until then the Service keeps its address, and no node announces it"
	for _, p := range o.Spec.Ports {
		if p.Protocol != "" && p.Protocol != corev1.ProtocolTCP {
			const text = "proxies do not serve port %d/%s: move it to a Service of its own, or do not ask for proxies"
			return fmt.Sprintf(text, p.Port, p.Protocol) + until
		}
		if p.NodePort == 0 {
			const text = "port %d has no node port, on whose number proxies listen: " +
				"set spec.allocateLoadBalancerNodePorts to true"
			return fmt.Sprintf(text, p.Port) + until
		}
	}
	return ""
}

// withoutProxy says which settings have no effect on a Service without a proxy.
func (opt Options) withoutProxy(a asked, affinity bool) (notes []string) {
	for i := range settings {
		s := &settings[i]
		value, key := a.values[s.key], strings.TrimPrefix(a.keys[s.key], openstack.Prefix)
		why := s.unmet
		switch {
		case value == "" || key == "" || value == "false" || s.key == AnnotationEnableHealthMonitor:
			continue
		case s.trigger && opt.OtherDataPath:
			why = "no Service is proxied where another program than kube-proxy delivers (dataPath: Other)"
		case s.trigger:
			why = "no proxies run here that could do it (proxy.enabled of the chart)"
			if s.key == AnnotationXForwardedFor {
				why += "; the client's address is kept under externalTrafficPolicy Local"
			}
		case s.key == AnnotationLBMethod &&
			(value == string(lb.RoundRobin) ||
				value == string(lb.SourceIP) &&
					affinity):
			continue
		case s.key == AnnotationTimeoutClientData || s.key == AnnotationTimeoutMemberData:
			if n, _ := strconv.Atoi(value); n >= idleDefault {
				continue // connections may be idle for longer
			}
		}
		if !s.trigger && opt.Proxies() {
			why += "; the Service asks for no proxy"
		}
		notes = append(notes, key+" does nothing: "+why)
	}
	return notes
}

// ProxyRecord returns the condition that records which settings of a Service were accepted last; false if it asks for
// no proxies.
func (opt Options) ProxyRecord(o *corev1.Service) (metav1.Condition, bool) {
	read, _ := bounded(&report{}, lb.Object{}, o, opt)
	a := opt.readSettings(&report{}, lb.Object{}, read)
	return metav1.Condition{
		Type:    v1beta1.ConditionProxyRecord,
		Status:  metav1.ConditionTrue,
		Reason:  "Accepted",
		Message: proxyRecordText(o.UID, a.values),
	}, a.triggers() && opt.Proxies()
}

// proxyRecordText is "uid=UID", then "NAME=VALUE" of each setting.
func proxyRecordText(uid types.UID, v values) string {
	text := "uid=" + string(uid)
	for i := range settings {
		if value := v[settings[i].key]; value != "" {
			text += " " + settings[i].name + "=" + value
		}
	}
	return text
}

// readProxyRecord returns the recorded values. One of another UID, and what proxyRecordText would not write, is not
// ours.
func readProxyRecord(uid types.UID, conditions []metav1.Condition) values {
	out := values{}
	c := apimeta.FindStatusCondition(conditions, v1beta1.ConditionProxyRecord)
	if c == nil {
		return out
	}
	for item := range strings.SplitSeq(c.Message, " ") {
		name, value, _ := strings.Cut(item, "=")
		if i := slices.IndexFunc(settings, func(s setting) bool { return s.name == name }); i >= 0 &&
			settings[i].refuses(value) == "" {
			out[settings[i].key] = value
		}
	}
	if proxyRecordText(uid, out) != c.Message {
		return values{}
	}
	return out
}
