package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// proxyRequest is what a Service requests of proxies.
type proxyRequest struct {
	// settingValues are the values in force.
	settingValues
	// faults describe the invalid values, with the valid ones.
	faults []string
	// keys are the annotations that the Service has, by the keys of their settings.
	keys map[string]string
}

// readSettings reads what a Service requests of proxies. An invalid setting keeps its recorded value; without a record
// it is absent.
func (opt Options) readSettings(r *problemList, object lb.Object, o *corev1.Service) proxyRequest {
	var a proxyRequest
	if len(o.Annotations) == 0 {
		return a
	}

	var record settingValues
	useRecorded := func(key string) {
		if record == nil {
			record = readProxyRecord(o.UID, o.Status.Conditions)
		}
		a.settingValues[key] = record[key]
	}

	for i := range proxySettings {
		s := &proxySettings[i]
		value, key := firstAnnotation(r, object, o, s.keys...)
		if value == "" {
			continue
		}

		if a.keys == nil {
			a.settingValues = settingValues{}
			a.keys = map[string]string{}
		}

		a.keys[s.key] = key
		fault := s.fault(value)
		if fault == "" {
			a.settingValues[s.key] = value
			continue
		}
		text := fmt.Sprintf("annotation %s (%.60q) is not in force: %s", key, value, fault)
		a.faults = append(a.faults, text)
		useRecorded(s.key)
	}
	if a.keys == nil {
		return a
	}

	forwarded := a.settingValues[AnnotationXForwardedFor]
	if a.headerVersion() > 0 && forwarded == "true" {
		fault := fmt.Sprintf("annotations %s (%q) and %s (%q) exclude each other",
			a.keys[AnnotationProxyProtocol], a.settingValues[AnnotationProxyProtocol],
			a.keys[AnnotationXForwardedFor], forwarded)
		a.faults = append(a.faults, fault)
		useRecorded(AnnotationProxyProtocol)
		useRecorded(AnnotationXForwardedFor)
	}

	fault := opt.withDefaults(a.settingValues).monitorFault()
	if fault != "" {
		a.faults = append(a.faults, fault)
		useRecorded(AnnotationHealthMonitorDelay)
		useRecorded(AnnotationHealthMonitorTimeout)
	}

	return a
}

// readProxy reads how proxies should serve a Service, and reports what is not in force.
func (opt Options) readProxy(r *problemList, object lb.Object, o *corev1.Service, s *lb.Service) {
	request := opt.readSettings(r, object, o)
	for _, fault := range request.faults {
		r.add(object, lb.InvalidRequest, "%s", fault)
	}

	hasAffinity := o.Spec.SessionAffinity == corev1.ServiceAffinityClientIP
	s.Proxied = opt.Proxies() && hasProxied(o)

	isRequested := opt.Proxies() && request.wantsProxy()
	switch {
	case isRequested:
		opt.requestProxy(r, object, o, s, request)
		s.Proxy = opt.newProxy(request.settingValues, hasAffinity)
	case s.Proxied:
		// Until the Service leaves the proxies they use the recorded settings. There is no record if the Service only
		// stays because it shares an address.
		v := readProxyRecord(o.UID, o.Status.Conditions)
		if len(v) == 0 {
			v = request.settingValues
		}
		s.Proxy = opt.newProxy(v, hasAffinity)
	default:
		notes := opt.ignoredSettings(request, hasAffinity)
		if len(notes) > 0 {
			r.addNote(object, lb.AnnotationIgnored, "%s", strings.Join(notes, "; "))
		}
	}
}

// requestProxy marks a Service as asking for proxies, or as refused.
func (opt Options) requestProxy(
	r *problemList,
	object lb.Object,
	o *corev1.Service,
	s *lb.Service,
	request proxyRequest,
) {
	obstacle := proxyObstacle(o)
	if obstacle != "" {
		s.ProxyRefused = true
		r.add(object, lb.ProxyRefused, "%s", obstacle)
	} else {
		s.AsksProxy = true
	}

	idle := request.longestIdle()
	if opt.Proxy.MaxIdle > 0 && idle > opt.Proxy.MaxIdle {
		r.addNote(object, lb.AnnotationIgnored,
			"an idle connection may last %s, and not %s (proxy.maxIdleSeconds of the chart)", opt.Proxy.MaxIdle, idle)
	}
}

// proxyObstacle returns the reason why a Service that asks for proxies cannot have them, or "".
func proxyObstacle(o *corev1.Service) string {
	const consequence = ": until then the Service keeps its address, and no node announces it"
	for _, p := range o.Spec.Ports {
		if p.Protocol != "" && p.Protocol != corev1.ProtocolTCP {
			return fmt.Sprintf("proxies do not serve port %d/%s: "+
				"move it to a Service of its own, or do not ask for proxies", p.Port, p.Protocol) + consequence
		}
		if p.NodePort == 0 {
			return fmt.Sprintf("port %d has no node port, on whose number proxies listen: "+
				"set spec.allocateLoadBalancerNodePorts to true", p.Port) + consequence
		}
	}

	return ""
}

// ignoredSettings describes the settings that have no effect on a Service without a proxy.
func (opt Options) ignoredSettings(request proxyRequest, hasAffinity bool) (notes []string) {
	for i := range proxySettings {
		s := &proxySettings[i]
		value := request.settingValues[s.key]
		key := strings.TrimPrefix(request.keys[s.key], openstack.Prefix)
		isSet := value != "" && key != ""
		if !isSet || s.worksWithoutProxy(value, hasAffinity) {
			continue
		}

		reason := s.whyIgnored
		switch {
		case s.isTrigger && opt.OtherDataPath:
			reason = "no Service is proxied where another program than kube-proxy delivers (dataPath: Other)"
		case s.isTrigger:
			reason = "no proxies run here that could do it (proxy.enabled of the chart)"
			if s.key == AnnotationXForwardedFor {
				reason += "; the client's address is kept under externalTrafficPolicy Local"
			}
		case opt.Proxies():
			reason += "; the Service asks for no proxy"
		}

		notes = append(notes, key+" does nothing: "+reason)
	}

	return notes
}

// worksWithoutProxy reports whether a Service without a proxy behaves as the value demands.
func (s *proxySetting) worksWithoutProxy(value string, hasAffinity bool) bool {
	switch {
	case value == "false" || s.key == AnnotationEnableHealthMonitor:
		return true
	case s.key == AnnotationLBMethod:
		return value == string(lb.RoundRobin) || value == string(lb.SourceIP) && hasAffinity
	case s.key == AnnotationTimeoutClientData || s.key == AnnotationTimeoutMemberData:
		n, _ := strconv.Atoi(value)
		return n >= octaviaIdleTimeout // without a proxy connections may be idle for longer
	}

	return false
}

// ProxyRecord returns the condition that records the settings of a Service that were accepted last; false if it asks
// for no proxies. Compile reports the Problems of the settings.
func (opt Options) ProxyRecord(o *corev1.Service) (metav1.Condition, bool) {
	ignored := &problemList{}
	readable, _ := withoutLongAnnotations(ignored, lb.Object{}, o, opt)
	request := opt.readSettings(ignored, lb.Object{}, readable)
	c := metav1.Condition{
		Type:    v1beta1.ConditionProxyRecord,
		Status:  metav1.ConditionTrue,
		Reason:  "Accepted",
		Message: proxyRecordText(o.UID, request.settingValues),
	}
	return c, request.wantsProxy() && opt.Proxies()
}

// proxyRecordText returns "uid=UID", then "NAME=VALUE" for each setting, separated by spaces.
func proxyRecordText(uid types.UID, v settingValues) string {
	text := "uid=" + string(uid)
	for i := range proxySettings {
		s := &proxySettings[i]
		value := v[s.key]
		if value != "" {
			text += " " + s.name + "=" + value
		}
	}

	return text
}

// readProxyRecord returns the recorded values. A record with another UID, or a text that proxyRecordText would not
// write, is not ours.
func readProxyRecord(uid types.UID, conditions []metav1.Condition) settingValues {
	out := settingValues{}
	c := apimeta.FindStatusCondition(conditions, v1beta1.ConditionProxyRecord)
	if c == nil {
		return out
	}

	for item := range strings.SplitSeq(c.Message, " ") {
		name, value, _ := strings.Cut(item, "=")
		i := slices.IndexFunc(proxySettings, func(s proxySetting) bool {
			return s.name == name
		})
		if i < 0 {
			continue
		}
		s := &proxySettings[i]
		if s.fault(value) == "" {
			out[s.key] = value
		}
	}

	if proxyRecordText(uid, out) != c.Message {
		return settingValues{}
	}

	return out
}
