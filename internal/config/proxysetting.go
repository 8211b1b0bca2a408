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

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Annotations by which a Service asks for proxies. All but the first also work with the prefix of OpenStack's
// annotations.
const (
	// AnnotationDataPath "Proxy" makes proxies serve the Service.
	AnnotationDataPath = "holdfast.dev/data-path"
	// AnnotationProxyProtocol "true", "v1" or "v2" makes proxies serve the Service, and send its pods a header with the
	// client's address.
	AnnotationProxyProtocol = "holdfast.dev/proxy-protocol"
	// AnnotationXForwardedFor "true" makes proxies serve the Service as HTTP, and append the client's address to
	// X-Forwarded-For.
	AnnotationXForwardedFor = "holdfast.dev/x-forwarded-for"
	// AnnotationDefaultTLSContainerRef "secret:NAME" makes proxies serve the Service and terminate TLS, with a
	// kubernetes.io/tls Secret of the Service's namespace. The Service is HTTP then, unless it has proxy-protocol.
	AnnotationDefaultTLSContainerRef = "holdfast.dev/default-tls-container-ref"
)

// Annotations that set how proxies serve a Service that asks for them. All also work with the prefix of OpenStack's
// annotations.
const (
	// AnnotationLBMethod chooses among the pods: ROUND_ROBIN, LEAST_CONNECTIONS, SOURCE_IP or SOURCE_IP_PORT.
	AnnotationLBMethod = "holdfast.dev/lb-method"
	// AnnotationTimeoutClientData is the number of milliseconds without a byte from the client after which a connection
	// ends.
	AnnotationTimeoutClientData = "holdfast.dev/timeout-client-data"
	// AnnotationTimeoutMemberData is the number of milliseconds without a byte from the pod after which a connection
	// ends.
	AnnotationTimeoutMemberData = "holdfast.dev/timeout-member-data"
	// AnnotationTimeoutMemberConnect is the number of milliseconds that a proxy waits for a connection to a pod.
	AnnotationTimeoutMemberConnect = "holdfast.dev/timeout-member-connect"
	// AnnotationTimeoutTCPInspect is the number of milliseconds that a proxy waits for a client's first bytes before it
	// chooses a pod.
	AnnotationTimeoutTCPInspect = "holdfast.dev/timeout-tcp-inspect"
	// AnnotationEnableHealthMonitor "true" makes the proxies check the pods.
	AnnotationEnableHealthMonitor = "holdfast.dev/enable-health-monitor"
	// AnnotationHealthMonitorDelay is the number of seconds between two checks.
	AnnotationHealthMonitorDelay = "holdfast.dev/health-monitor-delay"
	// AnnotationHealthMonitorTimeout is the number of seconds that a check may take; it must be less than the delay.
	AnnotationHealthMonitorTimeout = "holdfast.dev/health-monitor-timeout"
	// AnnotationHealthMonitorMaxRetries is the number of successful checks after which a pod serves again.
	AnnotationHealthMonitorMaxRetries = "holdfast.dev/health-monitor-max-retries"
	// AnnotationHealthMonitorMaxRetriesDown is the number of failed checks after which a pod no longer serves.
	AnnotationHealthMonitorMaxRetriesDown = "holdfast.dev/health-monitor-max-retries-down"
)

const (
	// ownPrefix begins the keys of Holdfast's own annotations.
	ownPrefix = "holdfast.dev/"
	// octaviaIdleTimeout is the number of milliseconds after which Octavia ends idle connections.
	octaviaIdleTimeout = 50_000
)

// These are reasons why a setting has no effect without a proxy.
const (
	needsProxy  = "only a proxy could do it"
	byReadiness = "readiness of the pods decides here, at once"
)

// proxySetting is one annotation that proxies obey.
type proxySetting struct {
	key string
	// name is the key without its prefix.
	name string
	// keys are the key, and the same with OpenStack's prefix if that works too.
	keys []string
	// isTrigger reports whether the annotation asks for proxies.
	isTrigger bool

	// choices are the valid values; nil for a number from min to max.
	choices []string
	min     int64
	max     int64
	// initial is the default; "" is none.
	initial string
	// unit is the unit of a number.
	unit string

	// whyIgnored is the reason why the setting has no effect without a proxy.
	whyIgnored string
}

// proxySettings are all settings, in the order of the record.
var proxySettings = withSpellings(
	proxySetting{
		key:       AnnotationDataPath,
		isTrigger: true,
		choices:   []string{"Proxy"},
	},
	proxySetting{
		key:       AnnotationProxyProtocol,
		isTrigger: true,
		choices:   []string{"true", "v1", "v2", "false"},
	},
	proxySetting{
		key:       AnnotationXForwardedFor,
		isTrigger: true,
		choices:   []string{"true", "false"},
	},
	proxySetting{key: AnnotationDefaultTLSContainerRef, isTrigger: true},
	proxySetting{
		key: AnnotationLBMethod,
		choices: []string{
			string(lb.RoundRobin),
			string(lb.LeastConnections),
			string(lb.SourceIP),
			string(lb.SourceIPPort),
		},
		initial:    string(lb.RoundRobin),
		whyIgnored: "kube-proxy chooses the pod",
	},
	numberSetting(AnnotationTimeoutClientData, 1, math.MaxInt32, "50000", "milliseconds", needsProxy),
	numberSetting(AnnotationTimeoutMemberData, 1, math.MaxInt32, "50000", "milliseconds", needsProxy),
	numberSetting(AnnotationTimeoutMemberConnect, 1, math.MaxInt32, "5000", "milliseconds", needsProxy),
	numberSetting(AnnotationTimeoutTCPInspect, 0, math.MaxInt32, "0", "milliseconds", needsProxy),
	proxySetting{
		key:     AnnotationEnableHealthMonitor,
		choices: []string{"true", "false"},
		initial: "false",
	},
	numberSetting(AnnotationHealthMonitorDelay, 1, 3600, "5", "seconds", byReadiness),
	numberSetting(AnnotationHealthMonitorTimeout, 1, 3600, "3", "seconds", byReadiness),
	numberSetting(AnnotationHealthMonitorMaxRetries, 1, 10, "1", "checks", byReadiness),
	numberSetting(AnnotationHealthMonitorMaxRetriesDown, 1, 10, "3", "checks", byReadiness),
)

// numberSetting returns a setting that is a number from first to last.
func numberSetting(
	key string,
	first, last int64,
	initial, unit, whyIgnored string,
) proxySetting {
	return proxySetting{
		key:        key,
		min:        first,
		max:        last,
		initial:    initial,
		unit:       unit,
		whyIgnored: whyIgnored,
	}
}

// withSpellings sets the names and keys of settings.
func withSpellings(all ...proxySetting) []proxySetting {
	for i := range all {
		s := &all[i]
		s.name = strings.TrimPrefix(s.key, ownPrefix)
		s.keys = []string{s.key}
		if s.key != AnnotationDataPath {
			s.keys = append(s.keys, openstack.Prefix+s.name)
		}
	}

	return all
}

// fault returns the reason why a value is invalid, with the valid values; "" for a valid value. A valid value contains
// no spaces.
func (s *proxySetting) fault(value string) string {
	switch {
	case s.key == AnnotationDefaultTLSContainerRef:
		name, isSecret := strings.CutPrefix(value, "secret:")
		switch {
		case isSecret && strings.Contains(name, "/"):
			return `it takes "secret:NAME" of a Secret in the Service's own namespace`
		case !isSecret || len(validation.IsDNS1123Subdomain(name)) > 0:
			return `it takes "secret:NAME" of a kubernetes.io/tls Secret in the Service's namespace`
		}
	case s.choices != nil:
		if !slices.Contains(s.choices, value) {
			return "it takes " + strings.Join(s.choices, " or ")
		}
	default:
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < s.min || n > s.max || strconv.FormatInt(n, 10) != value {
			return fmt.Sprintf("it takes %s from %d to %d", s.unit, s.min, s.max)
		}
	}

	return ""
}

// settingValues are valid values by the keys of their settings.
type settingValues map[string]string

// duration returns the value of a setting in the given unit.
func (v settingValues) duration(key string, unit time.Duration) time.Duration {
	return time.Duration(v.count(key)) * unit
}

// count returns the value of a setting as a number; 0 if it is absent.
func (v settingValues) count(key string) int {
	n, _ := strconv.Atoi(v[key]) // it is valid
	return n
}

// wantsProxy reports whether any of the values asks for proxies.
func (v settingValues) wantsProxy() bool {
	return v[AnnotationDataPath] != "" ||
		v.headerVersion() > 0 ||
		v[AnnotationXForwardedFor] == "true" ||
		v[AnnotationDefaultTLSContainerRef] != ""
}

// headerVersion returns the version of the PROXY protocol's header; 0 for none. OpenStack's "true" is version 1.
func (v settingValues) headerVersion() int {
	switch v[AnnotationProxyProtocol] {
	case "true", "v1":
		return 1
	case "v2":
		return 2
	}

	return 0
}

// longestIdle returns the longest time for which a connection may be idle.
func (v settingValues) longestIdle() time.Duration {
	return max(
		v.duration(AnnotationTimeoutClientData, time.Millisecond),
		v.duration(AnnotationTimeoutMemberData, time.Millisecond),
	)
}

// monitorFault returns an error text if a health check may take as long as the time between two checks.
func (v settingValues) monitorFault() string {
	timeout := v.count(AnnotationHealthMonitorTimeout)
	delay := v.count(AnnotationHealthMonitorDelay)
	if timeout < delay {
		return ""
	}

	return fmt.Sprintf("the timeout of health checks (health-monitor-timeout, %d s) is not below "+
		"their delay (health-monitor-delay, %d s)", timeout, delay)
}

// withDefaults returns the values, and the defaults of absent settings.
func (opt Options) withDefaults(v settingValues) settingValues {
	out := settingValues{}
	for i := range proxySettings {
		s := &proxySettings[i]
		value := cmp.Or(v[s.key], opt.Proxy.Defaults[s.name], s.initial)
		if value != "" {
			out[s.key] = value
		}
	}

	return out
}

// setDefaults reads settings separated by commas.
func (p *ProxyOptions) setDefaults(text string) error {
	p.Defaults = map[string]string{}
	for item := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		if name == "" {
			continue
		}

		i := slices.IndexFunc(proxySettings, func(s proxySetting) bool {
			return s.name == name && !s.isTrigger
		})
		if i < 0 {
			return fmt.Errorf("%q is no setting", name)
		}

		fault := proxySettings[i].fault(value)
		if fault != "" {
			return fmt.Errorf("%s=%q: %s", name, value, fault)
		}

		p.Defaults[name] = value
	}

	opt := Options{Proxy: *p}
	fault := opt.withDefaults(nil).monitorFault()
	if fault != "" {
		return errors.New(fault)
	}

	return nil
}

// newProxy converts the values, with the defaults. hasAffinity reports whether the Service has session affinity, which
// means SOURCE_IP.
func (opt Options) newProxy(v settingValues, hasAffinity bool) *lb.Proxy {
	v = opt.withDefaults(v)
	p := &lb.Proxy{
		Header:  v.headerVersion(),
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

	if hasAffinity {
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
