package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	// osPrefix begins the annotations of OpenStack's cloud controller manager.
	osPrefix = "loadbalancer.openstack.org/"
	// OpenStackID and OpenStackAddress are the annotations in which OCCM records what a Service has.
	OpenStackID      = osPrefix + "load-balancer-id"
	OpenStackAddress = osPrefix + "load-balancer-address"
	// osInternal requests an internal load balancer.
	osInternal = "service.beta.kubernetes.io/openstack-internal-load-balancer"
	// osMaxShared is OCCM's default of max-shared-lb, including the owner.
	osMaxShared = 2
)

// openStack reads the annotations of OpenStack's cloud controller manager (OCCM) as
// requests for addresses of our pools. It reports annotations without effect.
type openStack struct {
	opt   Options
	pools []pool
	// matches holds the pools for each pattern seen.
	matches map[string][]string
}

func newOpenStack(opt Options, pools []pool) *openStack {
	return &openStack{opt: opt, pools: pools, matches: map[string][]string{}}
}

// asksOpenStack reports whether a Service has an annotation of OCCM beside those in which OCCM records what it has.
func asksOpenStack(o *corev1.Service) bool {
	for key := range o.Annotations {
		if key == osInternal || strings.HasPrefix(key, osPrefix) && key != OpenStackID && key != OpenStackAddress {
			return true
		}
	}
	return false
}

// OwnsOpenStackID reports whether the load balancer id of a Service was written by Holdfast: the id is the Service's
// own, or it is not in force and came with a copied manifest.
func OwnsOpenStackID(o *corev1.Service, inForce string) bool {
	id, has := o.Annotations[OpenStackID]
	_, copied := copyOf(o)
	return has && (id == string(o.UID) || copied && inForce == "")
}

// namedByID returns the Services that others name by their ids.
func namedByID(services []*part[corev1.Service, servicePart]) map[string]*servicePart {
	named := map[string]*servicePart{}
	for _, p := range services {
		if id := p.made.LoadBalancerID; p.made.serves && id != "" {
			named[id] = nil
		}
	}
	if len(named) == 0 {
		return nil // as mostly
	}
	for _, p := range services {
		if _, is := named[p.made.UID]; is {
			named[p.made.UID] = &p.made
		}
	}
	return named
}

// joinID drops a load balancer id that nobody asked for: a copied manifest brought what Holdfast had written on its
// original, or a restore brought back the UID of a Service that has another one now. What a restored Service had is in its
// annotation holdfast.dev/assigned; without that an unknown id is the user's mistake.
func (j *joined) joinID(s *lb.Service, original string, named map[string]*servicePart) {
	if s.LoadBalancerID == "" {
		return
	}
	of := named[s.LoadBalancerID]
	copied := of != nil && original == of.Key.String() && original != s.Key.String()
	if copied || len(s.Recall) > 0 && (of == nil || !of.serves) {
		s.LoadBalancerID, s.MaxShared = "", 0
		return
	}
	if s.SharingKey != "" && s.LoadBalancerID != s.UID {
		object := lb.Object{Kind: KindService, Namespace: s.Key.Namespace, Name: s.Key.Name}
		s.Problem = cmp.Or(s.Problem, j.report.fault(object, lb.InvalidRequest, "asks to share by annotation %s and by %s: remove one of the two", AnnotationSharingKey, OpenStackID))
	}
}

// read adds the requests of the Service to w, and its limit to access. hasInternal: the Service has
// our own annotation for internal, which wins and has been read.
func (x *openStack) read(r *report, object lb.Object, o *corev1.Service, hasInternal bool, w *lb.Wish, access *lb.Access) {
	if x.opt.IgnoreOpenStack {
		return
	}
	s := osService{wish: w, access: access}
	_, s.limited = o.Annotations[AnnotationConnectionLimit]
	for key, value := range o.Annotations {
		if name, ours := strings.CutPrefix(key, osPrefix); ours {
			if s.annotations == nil {
				s.annotations = map[string]string{} // most Services have none
			}
			s.annotations[name] = strings.TrimSpace(value)
		}
	}
	x.readInternal(&s, o, hasInternal)
	if w.LoadBalancerID = s.annotations["load-balancer-id"]; w.LoadBalancerID != "" {
		w.MaxShared = cmp.Or(x.opt.MaxShared, osMaxShared)
	}
	s.readNodeSelector(x.opt.NodeSelector)
	if len(s.annotations) > 0 {
		x.readNamed(&s)
	}
	if len(s.notes) > 0 {
		slices.Sort(s.notes)
		r.note(object, lb.AnnotationIgnored, "%s", strings.Join(s.notes, "; "))
	}
}

// osService is one Service being read.
type osService struct {
	wish   *lb.Wish
	access *lb.Access
	// limited: our own annotation limits the connections.
	limited bool
	// annotations by their names without the prefix.
	annotations map[string]string
	notes       []string
}

func (s *osService) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// boolean reads as OCCM does: anything but "true" is the default, false. It reports such values.
func (s *osService) boolean(name, value string) bool {
	if value != "true" && value != "false" {
		s.note(`%s (%q) is read as "false": write "true" or "false"`, name, value)
	}
	return value == "true"
}

// readInternal reads whether the Service is internal. As in OCCM no Service is external where all are to be internal.
func (x *openStack) readInternal(s *osService, o *corev1.Service, hasInternal bool) {
	w := s.wish
	value, asked := o.Annotations[osInternal]
	is := asked && s.boolean(osInternal, value)
	switch {
	case hasInternal && asked && is != w.Internal:
		s.note("%s (%q) is not in force: %s is", osInternal, value, AnnotationInternal)
	case !hasInternal && asked && !is && x.opt.Internal:
		s.note("%s (%q) is not in force: Services of this cluster are internal", osInternal, value)
	}
	if !hasInternal {
		w.Internal = is || x.opt.Internal
	}
}

func (x *openStack) readNamed(s *osService) {
	w := s.wish
	if value, asked := s.annotations["keep-floatingip"]; asked {
		w.KeepFloatingIP = s.boolean("keep-floatingip", value)
	}
	s.readHostname()
	if _, limited := s.annotations["connection-limit"]; limited && x.opt.NoFilter {
		s.note("connection-limit does nothing: filtering is turned off")
	} else {
		s.readConnectionLimit()
	}
	x.readPools(s)
	for _, name := range slices.Sorted(maps.Keys(s.annotations)) {
		if len(s.notes) == maxNotes {
			s.note("the annotations of OpenStack are too many (%d) to name more", len(s.annotations))
			break
		}
		s.noteIgnored(name, s.annotations[name])
	}
}

func (s *osService) readHostname() {
	value := s.annotations["hostname"]
	fault := hostnameFault(value)
	switch {
	case value == "" || value == s.wish.Hostname:
	case fault != "":
		s.note("hostname (%q) is not in force: %s", value, fault)
	case s.wish.Hostname != "":
		s.note("hostname (%q) is not in force: %s is", value, AnnotationHostname)
	default:
		s.wish.Hostname = value
	}
}

// readConnectionLimit reads a limit of concurrent connections. This is how OCCM passes it
// on, although its documentation says per second. An invalid value means OCCM's default, none.
func (s *osService) readConnectionLimit() {
	value := s.annotations["connection-limit"]
	n, err := parseLimit(value)
	switch {
	case err != nil:
		s.note("connection-limit is read as -1: %v", err)
	case !s.limited:
		s.access.ConnectionLimit = n
	case value != "" && s.access.ConnectionLimit != n:
		s.note("connection-limit (%q) is not in force: %s is", value, AnnotationConnectionLimit)
	}
}

// readNodeSelector reads which nodes may announce. As in OCCM an empty annotation stands for all nodes.
func (s *osService) readNodeSelector(byDefault lb.Selector) {
	const name = "node-selector"
	value, asked := s.annotations[name]
	switch {
	case len(s.wish.NodeSelectors) > 0 && value != "":
		s.note("%s (%q) is not in force: %s is", name, value, AnnotationNodeSelector)
		return
	case len(s.wish.NodeSelectors) > 0 || asked && value == "":
		return
	case !asked && byDefault != nil:
		s.wish.NodeSelectors = []lb.Selector{byDefault}
		return
	case !asked:
		return
	}
	selector, err := parseNodeSelector(value)
	if err != nil {
		s.note("%s (%q) selects no node: %v", name, value, err)
		selector = matchesNothing()
	}
	s.wish.NodeSelectors = []lb.Selector{selector}
}

// poolChoices are the annotations that choose pools, those for internal Services last.
var poolChoices = []string{"floating-network-id", "floating-subnet-id", "floating-subnet", "floating-subnet-tags", "network-id", "subnet-id"}

// readPools reads the annotations that choose pools. As in OCCM the class overrides all
// others, and the id of a subnet overrides its name and tags.
func (x *openStack) readPools(s *osService) {
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
			x.choose(s, name, value)
		}
	}
}

func (x *openStack) choose(s *osService, name, value string) {
	text := fmt.Sprintf("%s %q", name, value)
	names, seen := x.matches[text]
	if !seen {
		match, err := matcherFor(name, value)
		if err != nil {
			s.note("%s (%q) cannot be read: %v", name, value, err)
		} else {
			for _, p := range x.pools {
				if match(p.Pool) {
					names = append(names, p.Name)
				}
			}
		}
		x.matches[text] = names
	}
	s.wish.PoolWishes = append(s.wish.PoolWishes, lb.PoolWish{Text: text, Pools: names, Reason: lb.UnknownNetwork})
}
