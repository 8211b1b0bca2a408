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

// filterAnnotations are the annotations that have no effect without a filter.
var filterAnnotations = []string{
	AnnotationSourceRanges,
	AnnotationSourceRangesDeny,
	KubernetesSourceRanges,
	AnnotationInternalTraffic,
	AnnotationConnectionLimit,
	openstack.ConnectionLimit,
	AnnotationRateLimit,
	AnnotationLogDrops,
}

// readAccess reads which sources may reach a Service, as far as Holdfast enforces that.
func (opt Options) readAccess(r *problemList, object lb.Object, o *corev1.Service) lb.Access {
	if opt.Filters() {
		return filteredAccess(r, object, o, opt)
	}

	opt.reportAccess(r, object, o)
	if !opt.OtherDataPath {
		return lb.Access{}
	}

	ranges := o.Spec.LoadBalancerSourceRanges
	if len(ranges) > 0 {
		r.add(object, lb.FilterNotEnforceable, "spec.loadBalancerSourceRanges is the network plugin's to enforce, "+
			"which may let pods and nodes pass: Holdfast does not filter (dataPath: Other)")
	}

	requested := filteredAccess(&problemList{}, object, o, opt)
	isOnlyField := len(ranges) > 0 &&
		len(requested.Deny) == 0 &&
		slices.Equal(requested.Allow, readSources(ranges).prefixes)
	if isOnlyField {
		return lb.Access{}
	}
	// Nothing enforces other ranges, so a Service that has some is restricted and allows no source.
	return lb.Access{Restricted: requested.HasRanges()}
}

// filteredAccess reads what the filter has to enforce. Invalid parts become Problems; the rest is in force.
func filteredAccess(r *problemList, object lb.Object, o *corev1.Service, opt Options) lb.Access {
	a := lb.Access{InternalAllowed: readInternal(r, object, o, opt)}

	n := countSources(o)
	if n > maxSources {
		a.Restricted = true
		r.add(object, lb.NoSourceAllowed, "has %d source ranges in all lists together, more than %d, "+
			"so all traffic is denied", n, maxSources)
	} else {
		readLists(r, object, o, &a)
	}

	a.ConnectionLimit = readLimit(r, object, o, AnnotationConnectionLimit, openstack.ConnectionLimit)
	a.RateLimit = readLimit(r, object, o, AnnotationRateLimit)

	value := strings.TrimSpace(o.Annotations[AnnotationLogDrops])
	switch value {
	case "true":
		a.LogDrops = true
	case "", "false":
	default:
		r.add(object, lb.InvalidLimit, `annotation %s (%q) logs nothing`, AnnotationLogDrops, value)
	}

	return a
}

// readLists reads the allowed and the denied sources.
func readLists(r *problemList, object lb.Object, o *corev1.Service, a *lb.Access) {
	a.Allow, a.Restricted = readAllowed(r, object, o)

	text := o.Annotations[AnnotationSourceRangesDeny]
	if strings.TrimSpace(text) == "" {
		return
	}

	deny := readSources(splitSources(text))
	deny.reportTo(r, object, "annotation "+AnnotationSourceRangesDeny)
	a.Deny = deny.prefixes

	if len(deny.prefixes) == 0 {
		// If no entry is valid, the list may mean any source.
		a.Allow = nil
		a.Restricted = true
	}
}

// readInternal reports whether the cluster's own pods and nodes bypass the lists.
func readInternal(r *problemList, object lb.Object, o *corev1.Service, opt Options) bool {
	value := strings.TrimSpace(o.Annotations[AnnotationInternalTraffic])
	switch value {
	case InternalAllow:
		return true
	case InternalFilter:
		return false
	case "":
	default:
		r.add(object, lb.InvalidSourceRange, "annotation %s is %q, neither %s nor %s, and changes nothing",
			AnnotationInternalTraffic, value, InternalAllow, InternalFilter)
	}

	return opt.AllowInternal
}

// reportAccess reports the annotations of a Service that have no effect without a filter. The field
// spec.loadBalancerSourceRanges is not reported, because kube-proxy enforces it.
func (opt Options) reportAccess(r *problemList, object lb.Object, o *corev1.Service) {
	var keys []string
	for _, key := range filterAnnotations {
		_, isSet := o.Annotations[key]
		if isSet {
			keys = append(keys, key)
		}
	}

	if len(keys) > 0 {
		opt.reportUnenforced(r, object, strings.Join(keys, ", "))
	}
}

// dropFilterTerms reports the source ranges of pools, which have no effect without a filter, and removes them. With
// another data path such a pool stays restricted, so that its addresses are not announced.
func (opt Options) dropFilterTerms(r *problemList, pools []*pool) {
	for _, p := range pools {
		if p.Restricted {
			opt.reportUnenforced(r, lb.Object{Kind: KindPool, Name: p.Name}, "spec.sourceRanges")
		}

		p.Restricted = p.Restricted && opt.OtherDataPath
		p.SourceRanges = nil
		p.Reset = false
		p.Open = false
	}
}

// reportUnenforced reports a setting that has no effect without a filter.
func (opt Options) reportUnenforced(r *problemList, object lb.Object, setting string) {
	if opt.OtherDataPath {
		r.add(object, lb.FilterNotEnforceable,
			"nothing enforces %s, since Holdfast does not filter (dataPath: Other)", setting)
		return
	}

	r.add(object, lb.FilterDisabled, "filtering is turned off, which leaves without effect: %s", setting)
}

// readAllowed reads the lists of allowed sources: our annotation, the field of the API, and the annotation that
// preceded the field. The first list that is set is in force. An annotation with an empty value is an empty list.
// restricted reports whether there is a list.
func readAllowed(r *problemList, object lb.Object, o *corev1.Service) (allow []netip.Prefix, restricted bool) {
	type namedSources struct {
		name string
		sourceRangeList
	}
	var lists []namedSources
	add := func(name string, entries []string) {
		lists = append(lists, namedSources{name: name, sourceRangeList: readSources(entries)})
	}

	if text, ok := o.Annotations[AnnotationSourceRanges]; ok {
		add("annotation "+AnnotationSourceRanges, splitSources(text))
	}

	ranges := o.Spec.LoadBalancerSourceRanges
	if len(ranges) > 0 {
		add("spec.loadBalancerSourceRanges", ranges)
	}

	if text, ok := o.Annotations[KubernetesSourceRanges]; ok {
		add("annotation "+KubernetesSourceRanges, splitSources(text))
	}
	if len(lists) == 0 {
		return nil, false
	}

	inForce := lists[0]
	for _, l := range lists {
		l.reportTo(r, object, l.name)
		if !slices.Equal(l.prefixes, inForce.prefixes) {
			r.add(object, lb.ConflictingSourceRanges, "%s is in force, %s differs and is not", inForce.name, l.name)
		}
	}

	return inForce.prefixes, true
}

// readLimit reads a limit; 0 means none. The value -1 means none too, as in OpenStack.
func readLimit(r *problemList, object lb.Object, o *corev1.Service, keys ...string) int {
	value, key := firstAnnotation(r, object, o, keys...)
	if value == "" || value == "-1" {
		return 0
	}

	n, err := strconv.ParseInt(value, 10, 32) // the kernel counts in 32 bits
	if err != nil || n < 1 {
		r.add(object, lb.InvalidLimit, "annotation %s (%q) limits nothing", key, value)
		return 0
	}

	return int(n)
}

// sourceRangeList is a parsed list of source ranges.
type sourceRangeList struct {
	// prefixes are masked and ordered; none lies within another.
	prefixes []netip.Prefix
	// invalid describes the invalid entries.
	invalid []string
}

// splitSources splits an annotation at commas and line ends, since YAML folds long lists over lines.
func splitSources(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool {
		return r == ',' || r == '\n'
	})
}

// readSources reads every valid entry. It skips blank entries.
func readSources(entries []string) sourceRangeList {
	var s sourceRangeList
	for _, entry := range entries {
		if strings.TrimSpace(entry) == "" {
			continue
		}

		p, err := parseSource(entry)
		if err != nil {
			s.invalid = append(s.invalid, err.Error())
			continue
		}

		s.prefixes = append(s.prefixes, p)
	}

	s.prefixes = lb.Outermost(s.prefixes)
	return s
}

// reportTo reports the invalid entries of a list.
func (s sourceRangeList) reportTo(r *problemList, object lb.Object, name string) {
	switch {
	case len(s.prefixes) == 0 && len(s.invalid) == 0:
		r.add(object, lb.NoSourceAllowed, "%s is empty, so all traffic is denied", name)
	case len(s.prefixes) == 0:
		r.add(object, lb.NoSourceAllowed, "%s has no valid entry (%s), so all traffic is denied",
			name, lb.SomeOf(s.invalid))
	case len(s.invalid) > 0:
		r.add(object, lb.InvalidSourceRange, "%s is in force except for its invalid entries (%s)",
			name, lb.SomeOf(s.invalid))
	}
}

// parseSource reads one source: a prefix or an address. It ignores host bits, since the author meant the prefix length.
// It reads an IPv4-in-IPv6 form as IPv4, because packets have their IPv4 source in this form.
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
