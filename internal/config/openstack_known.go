package config

import "strconv"

// known is an annotation of OCCM, with why it has no effect here; "" if it has one.
type known struct {
	why string
	// number: OCCM reads an integer, and uses its default for any other value.
	number bool
}

const (
	needsProxy    = "nothing stands between the client and the pods here that could do it"
	byReadiness   = "readiness of the pods decides here, at once"
	onlyAppliance = "there is no appliance here to choose"
)

// osKnown lists the annotations of OCCM by their names without the prefix.
var osKnown = map[string]known{
	"floating-network-id": {}, "floating-subnet": {}, "floating-subnet-id": {}, "floating-subnet-tags": {},
	"class": {}, "network-id": {}, "subnet-id": {}, "load-balancer-id": {}, "load-balancer-address": {},
	"hostname": {}, "keep-floatingip": {}, "connection-limit": {}, "node-selector": {},

	"member-subnet-id":                {why: "nodes are reached by their own addresses"},
	"port-id":                         {why: "there are no ports to name: a FloatingIP holds an address in advance"},
	"proxy-protocol":                  {why: needsProxy},
	"x-forwarded-for":                 {why: needsProxy + "; the client's address is kept under externalTrafficPolicy Local"},
	"lb-method":                       {why: "kube-proxy chooses the pod"},
	"timeout-client-data":             {why: needsProxy, number: true},
	"timeout-member-connect":          {why: needsProxy, number: true},
	"timeout-member-data":             {why: needsProxy, number: true},
	"timeout-tcp-inspect":             {why: needsProxy, number: true},
	"enable-health-monitor":           {why: byReadiness},
	"health-monitor-delay":            {why: byReadiness, number: true},
	"health-monitor-timeout":          {why: byReadiness, number: true},
	"health-monitor-max-retries":      {why: byReadiness, number: true},
	"health-monitor-max-retries-down": {why: byReadiness, number: true},
	"flavor-id":                       {why: onlyAppliance},
	"availability-zone":               {why: onlyAppliance + ": nodeSelectors of an advertisement choose where an address is announced"},
	"default-tls-container-ref":       {why: needsProxy},
}

// explain says what an annotation does not do.
func (s *osService) noteIgnored(name, value string) {
	k, is := osKnown[name]
	_, err := strconv.Atoi(value)
	switch {
	case !is:
		s.note("%s%s is unknown", osPrefix, name)
	case k.number && err != nil:
		s.note("%s (%q, which is not a number and would mean the default) does nothing: %s", name, value, k.why)
	case k.why != "":
		s.note("%s does nothing: %s", name, k.why)
	}
}
