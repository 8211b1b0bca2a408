// Package openstack translates the annotations of OpenStack's cloud controller manager (OCCM) on a Service into our own
// wishes, and returns those in which OCCM records what a Service has. It is pure. No package behind package config
// knows these annotations.
package openstack

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Annotations of OCCM.
const (
	// Prefix begins the annotations of OCCM.
	Prefix = "loadbalancer.openstack.org/"
	// ID and Address are the annotations in which OCCM records what a Service has.
	ID      = Prefix + "load-balancer-id"
	Address = Prefix + "load-balancer-address"
	// Hostname means the same as Holdfast's annotation.
	Hostname = Prefix + "hostname"
	// ConnectionLimit limits concurrent connections: this is how OCCM passes it on, although its documentation says per
	// second.
	ConnectionLimit = Prefix + "connection-limit"
	// NodeSelector selects nodes as Holdfast's annotation does. An empty selector selects all nodes.
	NodeSelector = Prefix + "node-selector"
	// Internal requests an internal load balancer.
	Internal = "service.beta.kubernetes.io/openstack-internal-load-balancer"
)

const (
	// defaultShared is OCCM's default of max-shared-lb, including the owner.
	defaultShared = 2
	// maxNotes bounds the remarks on annotations, of which OCCM has 31.
	maxNotes = 32
)

// Options are what OCCM reads from its configuration.
type Options struct {
	// Ignore the annotations without a remark, and all other Options.
	Ignore bool
	// Internal: all Services are internal but those whose annotation holdfast.dev/internal says otherwise; OCCM's
	// internal-lb.
	Internal bool
	// MaxShared is how many Services may share an address by ID, including the owner; 0 is OCCM's default, 2.
	MaxShared int
	// AnnotateAll records what a Service has also on Services without any of OCCM's annotations.
	AnnotateAll bool
}

// Is reports whether an annotation is one of OCCM's.
func Is(key string) bool { return key == Internal || strings.HasPrefix(key, Prefix) }

// asks reports whether a Service has an annotation of OCCM beside those in which OCCM records what it has.
func asks(annotations map[string]string) bool {
	for key := range annotations {
		if Is(key) && key != ID && key != Address {
			return true
		}
	}
	return false
}

// Records returns the annotations in which OCCM records what a Service has, "" to remove one. They stand on Services
// that use its annotations themselves, or on all: in a copied manifest the id would ask to share. The id is ours if it
// is the Service's own, or if it came with a copied manifest and is not in force; joins is the id in force.
func (o Options) Records(
	have map[string]string,
	uid string,
	copied bool,
	joins string,
	holds []netip.Addr,
) map[string]string {
	out, own := map[string]string{Address: ""}, joins == "" || joins == uid
	if id, has := have[ID]; has && (id == uid || copied && joins == "") {
		out[ID] = ""
	}
	if len(holds) == 0 || own && !o.AnnotateAll && !asks(have) {
		return out
	}
	out[Address] = holds[0].String()
	if own {
		out[ID] = uid
	}
	return out
}

// Translator translates annotations of Services, which choose among pools.
type Translator struct {
	Options
	Pools []lb.Pool
}

// Translate adds to the wishes of a Service what its annotations ask for, but for those that mean the same as ours. It
// returns what they do not do. hasInternal: our own annotation says whether the Service is internal, which wins and has
// been read.
func (t *Translator) Translate(annotations map[string]string, hasInternal bool, w *lb.Wish) (notes []string) {
	if t.Ignore {
		return nil
	}
	s := service{wish: w}
	for key, value := range annotations {
		if name, ours := strings.CutPrefix(key, Prefix); ours {
			if s.annotations == nil {
				s.annotations = map[string]string{} // most Services have none
			}
			s.annotations[name] = strings.TrimSpace(value)
		}
	}
	value, asked := annotations[Internal]
	t.readInternal(&s, value, asked, hasInternal)
	if len(s.annotations) > 0 {
		t.readNamed(&s)
	}
	slices.Sort(s.notes)
	return s.notes
}

type service struct {
	wish *lb.Wish
	// annotations by their names without the prefix.
	annotations map[string]string
	notes       []string
}

func (s *service) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// boolean reads as OCCM does: anything but "true" is the default, false. It reports such values.
func (s *service) boolean(name, value string) bool {
	if value != "true" && value != "false" {
		s.note(`%s (%q) is read as "false": write "true" or "false"`, name, value)
	}
	return value == "true"
}

// readInternal reads whether the Service is internal. As in OCCM no Service is external where all are to be internal.
func (t *Translator) readInternal(s *service, value string, asked, hasInternal bool) {
	internal := asked && s.boolean(Internal, value)
	switch {
	case !hasInternal && asked && !internal && t.Internal:
		s.note("%s (%q) is not in force: Services of this cluster are internal", Internal, value)
	case hasInternal && asked && internal != s.wish.Internal:
		s.note("%s (%q) is not in force: holdfast.dev/internal is", Internal, value)
	}
	if !hasInternal {
		s.wish.Internal = internal || t.Internal
	}
}

func (t *Translator) readNamed(s *service) {
	if s.wish.LoadBalancerID = s.annotations["load-balancer-id"]; s.wish.LoadBalancerID != "" {
		s.wish.MaxShared = cmp.Or(t.MaxShared, defaultShared)
	}
	if value, asked := s.annotations["keep-floatingip"]; asked {
		s.wish.KeepFloatingIP = s.boolean("keep-floatingip", value)
	}
	t.readPools(s)
	for _, name := range slices.Sorted(maps.Keys(s.annotations)) {
		if len(s.notes) == maxNotes {
			s.note("the annotations of OpenStack are too many (%d) to name more", len(s.annotations))
			break
		}
		switch why, exists := known[name]; {
		case !exists:
			s.note("%s%s is unknown", Prefix, name)
		case why != "":
			s.note("%s does nothing: %s", name, why)
		}
	}
}

// poolChoices are the annotations that choose pools, those for internal Services last.
var poolChoices = []string{
	"floating-network-id",
	"floating-subnet-id",
	"floating-subnet",
	"floating-subnet-tags",
	"network-id",
	"subnet-id",
}

// readPools reads the annotations that choose pools. As in OCCM the class overrides all
// others, and the id of a subnet overrides its name and tags.
func (t *Translator) readPools(s *service) {
	w := s.wish
	w.Class = s.annotations["class"]
	for i, name := range poolChoices {
		value := s.annotations[name]
		isInternal := i >= 4
		switch {
		case value == "":
		case w.Class != "":
			s.note("%s does nothing beside class, which wins", name)
		case isInternal && !w.Internal:
			s.note("%s does nothing: it chooses the internal address, which an external Service does not have", name)
		case !isInternal && w.Internal:
			s.note("%s does nothing for an internal Service", name)
		case i > 1 && !isInternal && s.annotations["floating-subnet-id"] != "":
			s.note("%s does nothing beside floating-subnet-id, which wins", name)
		default:
			t.choose(s, name, value)
		}
	}
}

func (t *Translator) choose(s *service, name, value string) {
	var found []string
	match, err := matcherFor(name, value)
	if err != nil {
		s.note("%s (%q) cannot be read: %v", name, value, err)
	} else {
		for _, p := range t.Pools {
			if match(p) {
				found = append(found, p.Name)
			}
		}
	}
	s.wish.PoolWishes = append(
		s.wish.PoolWishes,
		lb.PoolWish{Text: fmt.Sprintf("%s %q", name, value), Pools: found, Reason: lb.UnknownNetwork},
	)
}

const onlyAppliance = "there is no appliance here to choose"

// known lists the annotations of OCCM by their names without the prefix, each with why it has no effect here; "" if it
// has one, with a comment for docs/reference/names.md.
var known = map[string]string{
	"floating-network-id":  "", // chooses the pools with this name or alias.
	"floating-subnet":      "", // chooses pools by a pattern of their names and aliases, in OCCM's grammar.
	"floating-subnet-id":   "", // chooses the pools with this name or alias, and overrides the other two.
	"floating-subnet-tags": "", // chooses pools by their tags, in OCCM's grammar.
	"class":                "", // chooses the pools that have it in spec.classes, and overrides all other choices.
	// partly: chooses the pools of an internal Service by name or alias; nothing for an external one.
	"network-id": "",
	"subnet-id":  "", // partly: as network-id.
	// partly: shares the address of the Service with this id; ids of load balancers of OpenStack are unknown.
	"load-balancer-id":      "",
	"load-balancer-address": "", // partly: is written, and never read.
	"hostname":              "", // is shown in the status, beside each address.
	"keep-floatingip":       "", // makes a FloatingIP, which keeps the addresses when the Service goes.
	// partly: limits concurrent connections to each port on each node, not of all nodes together.
	"connection-limit": "",
	"node-selector":    "", // partly: restricts the nodes that announce; kube-proxy still serves pods on all nodes.

	"member-subnet-id": "nodes are reached by their own addresses",
	"port-id":          "there are no ports to name: a FloatingIP holds an address in advance",
	// partly: where proxies run, they send the pods a header with the client's address; otherwise nothing.
	"proxy-protocol": "",
	// partly: proxies, where they run, append the client's address; elsewhere externalTrafficPolicy Local shows it to
	// pods.
	"x-forwarded-for": "",
	// partly: decides at proxies; elsewhere ROUND_ROBIN is met, SOURCE_IP with sessionAffinity ClientIP, no other.
	"lb-method": "",
	// partly: bounds idle connections at proxies; elsewhere they may be idle for longer, so that 50000 and more is met.
	"timeout-client-data":    "",
	"timeout-member-connect": "", // partly: bounds the wait for a pod at proxies.
	"timeout-member-data":    "", // partly: as timeout-client-data.
	"timeout-tcp-inspect":    "", // partly: is how long proxies wait for the first bytes.
	// makes proxies check the pods; elsewhere readiness decides, which is the same wish.
	"enable-health-monitor":           "",
	"health-monitor-delay":            "", // partly: of checks by proxies.
	"health-monitor-timeout":          "", // partly: of checks by proxies; it must be below the delay.
	"health-monitor-max-retries":      "", // partly: of checks by proxies.
	"health-monitor-max-retries-down": "", // partly: of checks by proxies.
	"flavor-id":                       onlyAppliance,
	"availability-zone": onlyAppliance +
		": nodeSelectors of an advertisement choose where an address is announced",
	// partly: TLS ends at proxies, where they run, by a Secret of the Service's namespace; otherwise nothing.
	"default-tls-container-ref": "",
}
