package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
	corev1 "k8s.io/api/core/v1"
)

// readAccess reads who may reach a Service, as far as Holdfast sees to it.
func (opt Options) readAccess(r *report, object lb.Object, o *corev1.Service) lb.Access {
	if opt.Filters() {
		return filteredAccess(r, object, o, opt)
	}
	opt.ignoreAccess(r, object, o)
	ranges := o.Spec.LoadBalancerSourceRanges
	if !opt.OtherDataPath {
		return lb.Access{}
	}
	if len(ranges) > 0 {
		r.fault(object, lb.FilterNotEnforceable, "spec.loadBalancerSourceRanges is the network plugin's to enforce, "+
			"which may let pods and nodes pass: Holdfast does not filter (dataPath: Other)")
	}
	asked := filteredAccess(&report{}, object, o, opt)
	if len(ranges) > 0 && len(asked.Deny) == 0 && slices.Equal(asked.Allow, readSources(ranges).prefixes) {
		return lb.Access{} // it asks for nothing else
	}
	return lb.Access{Restricted: asked.HasRanges()} // to nobody, since nothing enforces what it asks for
}

// filteredAccess reads what the filter is to enforce. Unreadable parts become Problems; the
// rest is in force.
func filteredAccess(r *report, object lb.Object, o *corev1.Service, opt Options) lb.Access {
	a := lb.Access{InternalAllowed: readInternal(r, object, o, opt)}
	if n := countSources(o); n > maxSources {
		r.fault(object, lb.NoSourceAllowed, "has %d source ranges in all lists together, more than %d, "+
			"so all traffic is denied", n, maxSources)
		a.Restricted = true
	} else {
		readLists(r, object, o, &a)
	}
	a.ConnectionLimit = readLimit(r, object, o, AnnotationConnectionLimit, openstack.ConnectionLimit)
	a.RateLimit = readLimit(r, object, o, AnnotationRateLimit)
	switch value := strings.TrimSpace(o.Annotations[AnnotationLogDrops]); value {
	case "true":
		a.LogDrops = true
	case "", "false":
	default:
		r.fault(object, lb.InvalidLimit, `annotation %s (%q) logs nothing`, AnnotationLogDrops, value)
	}
	return a
}

// readLists reads who may come in and who may not.
func readLists(r *report, object lb.Object, o *corev1.Service, a *lb.Access) {
	a.Allow, a.Restricted = readAllowed(r, object, o)
	if text, given := o.Annotations[AnnotationSourceRangesDeny]; given && strings.TrimSpace(text) != "" {
		deny := readSources(splitSources(text))
		deny.report(r, object, "annotation "+AnnotationSourceRangesDeny)
		a.Deny = deny.prefixes
		// If no entry can be read, the list may mean any source.
		if len(deny.prefixes) == 0 {
			a.Allow, a.Restricted = nil, true
		}
	}
}

// readInternal reads whether the cluster's own pods and nodes may connect whatever the lists say.
func readInternal(r *report, object lb.Object, o *corev1.Service, opt Options) bool {
	switch value := strings.TrimSpace(o.Annotations[AnnotationInternalTraffic]); value {
	case InternalAllow:
		return true
	case InternalFilter:
		return false
	case "":
	default:
		r.fault(object, lb.InvalidSourceRange, "annotation %s is %q, neither %s nor %s, and changes nothing",
			AnnotationInternalTraffic, value,
			InternalAllow, InternalFilter)
	}
	return opt.AllowInternal
}

// ofFilter are the annotations that have no effect without a filter.
var ofFilter = []string{
	AnnotationSourceRanges,
	AnnotationSourceRangesDeny,
	KubernetesSourceRanges,
	AnnotationInternalTraffic,
	AnnotationConnectionLimit,
	openstack.ConnectionLimit,
	AnnotationRateLimit,
	AnnotationLogDrops,
}

// ignoreAccess reports the annotations of a Service that have no effect without a
// filter. The field of the API is not one of them: kube-proxy enforces it.
func (opt Options) ignoreAccess(r *report, object lb.Object, o *corev1.Service) {
	var named []string
	for _, key := range ofFilter {
		if _, given := o.Annotations[key]; given {
			named = append(named, key)
		}
	}
	if len(named) > 0 {
		opt.unenforced(r, object, strings.Join(named, ", "))
	}
}

// openPools does the same for pools, and removes their source ranges; not where these keep addresses from being
// announced.
func (opt Options) openPools(r *report, pools []*pool) {
	for _, p := range pools {
		if p.Restricted {
			opt.unenforced(r, lb.Object{Kind: KindPool, Name: p.Name}, "spec.sourceRanges")
		}
		p.Restricted, p.SourceRanges, p.Reset, p.Open = p.Restricted && opt.OtherDataPath, nil, false, false
	}
}

// unenforced reports what has no effect without a filter.
func (opt Options) unenforced(r *report, object lb.Object, what string) {
	if opt.OtherDataPath {
		r.fault(
			object,
			lb.FilterNotEnforceable,
			"nothing enforces %s, since Holdfast does not filter (dataPath: Other)",
			what,
		)
	} else {
		r.fault(object, lb.FilterDisabled, "filtering is turned off, which leaves without effect: %s", what)
	}
}

// readAllowed reads the lists of allowed sources: our annotation, the field of the
// API, and the annotation that preceded the field. The first one that is set is in
// force. An annotation with an empty value is an empty list.
func readAllowed(r *report, object lb.Object, o *corev1.Service) (allow []netip.Prefix, restricted bool) {
	type list struct {
		name string
		sources
	}
	var lists []list
	if text, given := o.Annotations[AnnotationSourceRanges]; given {
		lists = append(lists, list{"annotation " + AnnotationSourceRanges, readSources(splitSources(text))})
	}
	if len(o.Spec.LoadBalancerSourceRanges) > 0 {
		lists = append(lists, list{"spec.loadBalancerSourceRanges", readSources(o.Spec.LoadBalancerSourceRanges)})
	}
	if text, given := o.Annotations[KubernetesSourceRanges]; given {
		lists = append(lists, list{"annotation " + KubernetesSourceRanges, readSources(splitSources(text))})
	}
	for _, l := range lists {
		l.report(r, object, l.name)
		if !slices.Equal(l.prefixes, lists[0].prefixes) {
			r.fault(object, lb.ConflictingSourceRanges, "%s is in force, %s differs and is not", lists[0].name, l.name)
		}
	}
	if len(lists) == 0 {
		return nil, false
	}
	return lists[0].prefixes, true
}

// report reports the unreadable entries of a list.
func (s sources) report(r *report, object lb.Object, name string) {
	switch {
	case len(s.prefixes) == 0 && len(s.unread) == 0:
		r.fault(object, lb.NoSourceAllowed, "%s is empty, so all traffic is denied", name)
	case len(s.prefixes) == 0:
		r.fault(object, lb.NoSourceAllowed, "%s holds nothing that can be read (%s), so all traffic is denied",
			name, lb.SomeOf(s.unread))
	case len(s.unread) > 0:
		r.fault(
			object,
			lb.InvalidSourceRange,
			"%s is in force but for what cannot be read (%s)",
			name,
			lb.SomeOf(s.unread),
		)
	}
}

// readLimit reads a limit, 0 for none; -1 is none, as in OpenStack.
func readLimit(r *report, object lb.Object, o *corev1.Service, keys ...string) int {
	value, key := firstAnnotation(r, object, o, keys...)
	if value == "" || value == "-1" {
		return 0
	}
	n, err := strconv.ParseInt(value, 10, 32) // the kernel counts in 32 bits
	if err != nil || n < 1 {
		r.fault(object, lb.InvalidLimit, "annotation %s (%q) limits nothing", key, value)
		return 0
	}
	return int(n)
}

// sources is a parsed list of source ranges.
type sources struct {
	// prefixes are masked and ordered; none lies within another.
	prefixes []netip.Prefix
	// unread describes the unreadable entries.
	unread []string
}

// splitSources splits an annotation. YAML folds long lists over lines, so the end
// of a line ends an entry as a comma does.
func splitSources(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' })
}

// readSources reads every readable entry. It skips blank entries.
func readSources(entries []string) sources {
	var s sources
	for _, entry := range entries {
		if strings.TrimSpace(entry) == "" {
			continue
		}
		p, err := parseSource(entry)
		if err != nil {
			s.unread = append(s.unread, err.Error())
			continue
		}
		s.prefixes = append(s.prefixes, p)
	}
	s.prefixes = lb.Outermost(s.prefixes)
	return s
}

// parseSource reads one source: a prefix or an address. It ignores host bits: the
// prefix length is what the author meant. IPv4 in IPv6 form is read as IPv4, because a
// packet has its IPv4 source as such.
func parseSource(entry string) (netip.Prefix, error) {
	entry = strings.TrimSpace(entry)
	p, err := netip.ParsePrefix(entry)
	if err != nil {
		a, err := netip.ParseAddr(entry)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("%.60q is neither a prefix nor an address", entry)
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("%.60q is wider than IPv4 in IPv6 form can be (/96)", entry)
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}
