package config

import (
	"flag"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/openstack"
)

func fromSources(sources ...string) func(*corev1.Service) {
	return func(o *corev1.Service) { o.Spec.LoadBalancerSourceRanges = sources }
}

// accessText formats an Access for a reader.
func accessText(a lb.Access) string {
	var words []string
	if a.Restricted {
		words = append(words, fmt.Sprint("from ", a.Allow))
	}
	if len(a.Deny) > 0 {
		words = append(words, fmt.Sprint("but ", a.Deny))
	}
	if a.ConnectionLimit > 0 || a.RateLimit > 0 {
		words = append(words, fmt.Sprint(a.ConnectionLimit, " at once, ", a.RateLimit, "/s"))
	}
	if a.InternalAllowed {
		words = append(words, "or inside")
	}
	if a.LogDrops {
		words = append(words, "logged")
	}
	return strings.Join(words, " ")
}

func TestAccess(t *testing.T) {
	annotation := func(key string) string { return "annotation " + key }
	for _, tt := range []struct {
		name     string
		change   func(*corev1.Service)
		want     string
		reported []string
	}{
		{"nothing asked", func(*corev1.Service) {}, "", nil},
		{"the field", fromSources("192.0.2.0/24", "2001:db8::/32"), "from [192.0.2.0/24 2001:db8::/32]", nil},
		{"one family closes the other", fromSources("192.0.2.0/24"), "from [192.0.2.0/24]", nil},
		{"everybody", fromSources("0.0.0.0/0", "::/0"), "from [0.0.0.0/0 ::/0]", nil},
		{"spaces and host bits", fromSources(" 192.168.32.1/24", "10.1.2.3/8\t"), "from [10.0.0.0/8 192.168.32.0/24]", nil},
		{
			"addresses",
			annotated(AnnotationSourceRanges, "192.0.2.7, 2001:db8::7"), "from [192.0.2.7/32 2001:db8::7/128]", nil,
		},
		{
			"lines and trailing commas",
			annotated(AnnotationSourceRanges, "192.0.2.0/25,\n  192.0.2.128/25,\n"),
			"from [192.0.2.0/25 192.0.2.128/25]", nil,
		},
		{
			"nested and repeated",
			fromSources("10.0.0.0/8", "10.1.0.0/16", "10.0.0.0/8", "10.255.255.255"), "from [10.0.0.0/8]", nil,
		},
		{"IPv4 in IPv6 form", fromSources("::ffff:10.1.2.3/104", "::ffff:192.0.2.1"), "from [10.0.0.0/8 192.0.2.1/32]", nil},
		{"wider than IPv4 in IPv6 form", fromSources("::ffff:10.1.2.3/95", "10.0.0.0/8"), "from [10.0.0.0/8]",
			[]string{
				`InvalidSourceRange: spec.loadBalancerSourceRanges is in force except for its invalid entries ("::ffff:10.1.2.3/95" is wider than IPv4 in IPv6 ` +
					`form can be (/96))`,
			}},
		{
			"the rest is in force",
			annotated(AnnotationSourceRanges, "10.0.0.0/33, 10.0.0.0/8, ten, fe80::1%eth0"), "from [10.0.0.0/8]",
			[]string{`InvalidSourceRange: ` + annotation(AnnotationSourceRanges) +
				` is in force except for its invalid entries ("10.0.0.0/33" is neither a prefix nor an address, "ten" is neither a prefix nor an address, ` +
				`"fe80::1%eth0" is neither a prefix nor an address)`},
		},
		{"nothing readable closes", fromSources("10.0.0.0/255.0.0.0"), "from []",
			[]string{`NoSourceAllowed: spec.loadBalancerSourceRanges has no valid entry ("10.0.0.0/255.0.0.0" is neither ` +
				`a prefix nor an address), so all traffic is denied`}},
		{"empty closes", annotated(AnnotationSourceRanges, ""), "from []",
			[]string{`NoSourceAllowed: ` + annotation(AnnotationSourceRanges) + ` is empty, so all traffic is denied`}},
		{"spaces and commas close", annotated(KubernetesSourceRanges, " , "), "from []",
			[]string{`NoSourceAllowed: ` + annotation(KubernetesSourceRanges) + ` is empty, so all traffic is denied`}},
		{"the older annotation is a fallback", annotated(KubernetesSourceRanges, "10.0.0.0/8"), "from [10.0.0.0/8]", nil},
		{"same in other words", all(fromSources("10.0.0.0/8"), annotated(KubernetesSourceRanges, "10.0.0.1/8"),
			annotated(AnnotationSourceRanges, "10.0.0.0/8,10.1.0.0/16")), "from [10.0.0.0/8]", nil},
		{
			"ours wins",
			all(fromSources("10.0.0.0/8"), annotated(AnnotationSourceRanges, "192.0.2.0/24")), "from [192.0.2.0/24]",
			[]string{`ConflictingSourceRanges: ` + annotation(AnnotationSourceRanges) +
				` is in force, spec.loadBalancerSourceRanges differs and is not`},
		},
		{"ours wins even if it closes", all(fromSources("10.0.0.0/8"), annotated(AnnotationSourceRanges, "")), "from []",
			[]string{`ConflictingSourceRanges: ` + annotation(AnnotationSourceRanges) +
				` is in force, spec.loadBalancerSourceRanges differs and is not`,
				`NoSourceAllowed: ` + annotation(AnnotationSourceRanges) + ` is empty, so all traffic is denied`}},
		{
			"deny",
			all(fromSources("10.0.0.0/8"), annotated(AnnotationSourceRangesDeny, "10.9.0.0/16, 10.9.1.0/24")),
			"from [10.0.0.0/8] but [10.9.0.0/16]", nil,
		},
		{"deny alone", annotated(AnnotationSourceRangesDeny, "10.9.0.0/16"), "but [10.9.0.0/16]", nil},
		{"deny no source", annotated(AnnotationSourceRangesDeny, " "), "", nil},
		{"unreadable deny closes", all(fromSources("10.0.0.0/8"), annotated(AnnotationSourceRangesDeny, "them")), "from []",
			[]string{`NoSourceAllowed: ` + annotation(AnnotationSourceRangesDeny) +
				` has no valid entry ("them" is neither a prefix nor an address), so all traffic is denied`}},
		{
			"limits",
			all(annotated(AnnotationConnectionLimit, "100"), annotated(AnnotationRateLimit, " 7 "),
				annotated(AnnotationLogDrops, "true")),
			"100 at once, 7/s logged", nil,
		},
		{
			"no limits",
			all(annotated(AnnotationConnectionLimit, "-1"), annotated(AnnotationRateLimit, "-1"),
				annotated(AnnotationLogDrops, "false")),
			"", nil,
		},
		{
			"bad limits",
			all(annotated(AnnotationConnectionLimit, "0"), annotated(AnnotationRateLimit, "4294967296"),
				annotated(AnnotationLogDrops, "yes")),
			"", []string{`InvalidLimit: annotation holdfast.dev/connection-limit ("0") limits nothing`,
				`InvalidLimit: annotation holdfast.dev/log-drops ("yes") logs nothing`,
				`InvalidLimit: annotation holdfast.dev/rate-limit ("4294967296") limits nothing`},
		},
		{
			"inside too",
			all(fromSources("10.0.0.0/8"), annotated(AnnotationInternalTraffic, " Allow")),
			"from [10.0.0.0/8] or inside", nil,
		},
		{
			"inside is no exception",
			all(fromSources("10.0.0.0/8"), annotated(AnnotationInternalTraffic, "Filter")), "from [10.0.0.0/8]", nil,
		},
		{
			"unclear about the inside",
			all(fromSources("10.0.0.0/8"), annotated(AnnotationInternalTraffic, "allow")), "from [10.0.0.0/8]",
			[]string{
				`InvalidSourceRange: annotation holdfast.dev/internal-traffic is "allow", neither Allow nor Filter, and changes nothing`,
			},
		},
		{"OpenStack's limit", annotated(openstack.Prefix+"connection-limit", "50"), "50 at once, 0/s", nil},
		{
			"ours before OpenStack's",
			all(annotated(openstack.Prefix+"connection-limit", "50"), annotated(AnnotationConnectionLimit, "50")),
			"50 at once, 0/s", nil,
		},
	} {
		s, problems := Compile(Objects{Services: []*corev1.Service{serviceObject("s", tt.change)}}, served())
		if got := accessText(s.Services[0].Access); got != tt.want {
			t.Errorf("%s: access %q, want %q", tt.name, got, tt.want)
		}
		var reported []string
		for _, p := range problems {
			reported = append(reported, fmt.Sprintf("%s: %s", p.Reason, p.Message))
			if !p.Reason.OfFilter() || p.Note {
				t.Errorf("%s: %+v is not a fault of the filter", tt.name, p)
			}
		}
		same(t, tt.name+": problems", tt.reported, reported)
		if s.Services[0].Problem != nil {
			t.Errorf("%s: the Service waits for an address because of its filter", tt.name)
		}
	}
}

// TestInternalDefault: a Service may differ from the cluster's default for internal traffic, both ways.
func TestInternalDefault(t *testing.T) {
	opt := served()
	opt.AllowInternal = true
	for value, want := range map[string]bool{"": true, "Allow": true, "Filter": false, "filter": true} {
		s, _ := Compile(
			Objects{Services: []*corev1.Service{serviceObject("s", annotated(AnnotationInternalTraffic, value))}}, opt,
		)
		if got := s.Services[0].InternalAllowed; got != want {
			t.Errorf("%q: allowed %v, want %v", value, got, want)
		}
	}
}

// A message does not grow with the list.
func TestManyUnreadableSources(t *testing.T) {
	entries := slices.Repeat([]string{strings.Repeat("x", 1000)}, 1000)
	s, problems := Compile(
		Objects{
			Services: []*corev1.Service{serviceObject("s", annotated(AnnotationSourceRanges, strings.Join(entries, ",")))},
		},
		served(),
	)
	if a := s.Services[0].Access; !a.Restricted || len(a.Allow) > 0 {
		t.Errorf("access %q", accessText(a))
	}
	if len(problems) != 1 || len(problems[0].Message) > 1000 || !strings.Contains(problems[0].Message, "and 995 more") {
		t.Errorf("problems %v", problemTexts(problems))
	}
}

// TestPoolAccess: the sources that may reach a pool's addresses, and the answer at ports that no Service declares. A
// pool that does not choose the answer has the chart's.
func TestPoolAccess(t *testing.T) {
	const drop, reset, allow = v1beta1.UndeclaredDrop, v1beta1.UndeclaredReset, v1beta1.UndeclaredAllow
	for _, tt := range []struct {
		ranges       []string
		ports, chart v1beta1.UndeclaredPorts
		want         string
		reported     int
	}{
		{nil, "", "", "false [] false false", 0},
		{[]string{"10.0.0.1/8", "2001:db8::/32 "}, "", "", "true [10.0.0.0/8 2001:db8::/32] false false", 0},
		{[]string{"10.0.0.0/8", "x"}, "", "", "true [10.0.0.0/8] false false", 1},
		{[]string{"x"}, "", "", "true [] false false", 1},
		{nil, reset, "", "false [] true false", 0},
		{nil, allow, "", "false [] false true", 0},
		{nil, "", drop, "false [] false false", 0},
		{nil, "", reset, "false [] true false", 0},
		{nil, "", allow, "false [] false true", 0},
		{nil, drop, allow, "false [] false false", 0},
		{nil, reset, allow, "false [] true false", 0},
		{nil, allow, reset, "false [] false true", 0},
	} {
		opt := served()
		f := flag.NewFlagSet("", flag.ContinueOnError)
		opt.Define(f)
		if tt.chart != "" {
			must(t, f.Parse([]string{"--undeclared-ports", string(tt.chart)}))
		}
		o := poolObject("p", 1, "192.0.2.0/28")
		o.Spec.SourceRanges, o.Spec.UndeclaredPorts = tt.ranges, tt.ports
		s, problems := Compile(Objects{Pools: []*v1beta1.IPAddressPool{o}}, opt)
		p := s.Pools[0]
		if got := fmt.Sprint(p.Restricted, p.SourceRanges, p.Reset, p.Open); got != tt.want || len(problems) != tt.reported {
			t.Errorf("%q, %q, chart %q: %s, want %s; reported %v", tt.ranges, tt.ports, tt.chart, got, tt.want,
				problemTexts(problems))
		}
		f.SetOutput(io.Discard)
		if err := f.Parse([]string{"--undeclared-ports=allow"}); err == nil {
			t.Error("another word is accepted")
		}
	}
}

// TestNoFilter: settings without effect are reported, except for those that kube-proxy enforces.
func TestNoFilter(t *testing.T) {
	off := served()
	off.NoFilter = true
	closed := poolObject("closed", 1, "192.0.2.0/28")
	closed.Spec.SourceRanges, closed.Spec.UndeclaredPorts = []string{"10.0.0.0/8"}, v1beta1.UndeclaredAllow
	s, problems := Compile(Objects{
		Pools: []*v1beta1.IPAddressPool{closed},
		Services: []*corev1.Service{
			serviceObject("a", all(annotated(AnnotationSourceRanges, "x"), annotated(AnnotationLogDrops, "true"),
				annotated(openstack.Prefix+"connection-limit", "5"))),
			serviceObject("b", fromSources("10.0.0.0/8")),
		},
	}, off)
	for _, sv := range s.Services {
		if got := accessText(sv.Access); got != "" {
			t.Errorf("%s: access %q", sv.Key, got)
		}
	}
	if p := s.Pools[0]; p.Restricted || p.Reset || p.Open {
		t.Errorf("pool %+v", p)
	}
	want := []string{
		"IPAddressPool closed FilterDisabled: filtering is turned off, which leaves without effect: spec.sourceRanges",
		"Service default/a FilterDisabled: filtering is turned off, which leaves without effect: " +
			"holdfast.dev/source-ranges, loadbalancer.openstack.org/connection-limit, holdfast.dev/log-drops",
	}
	same(t, "problems", want, problemTexts(problems))
}

// TestOtherDataPath: spec.loadBalancerSourceRanges closes nothing, since the network plugin enforces it. Other ranges
// close the Service, since nothing enforces them.
func TestOtherDataPath(t *testing.T) {
	other := served()
	other.OtherDataPath = true
	const closed = "from []"
	const spec = "FilterNotEnforceable: spec.loadBalancerSourceRanges is the network plugin's to enforce, " +
		"which may let pods and nodes pass: Holdfast does not filter (dataPath: Other)"
	nothing := func(what string) string {
		return "FilterNotEnforceable: nothing enforces " + what + ", since Holdfast does not filter (dataPath: Other)"
	}
	sources := annotated(AnnotationSourceRanges, "10.0.0.0/8")
	for _, tt := range []struct {
		name   string
		change func(*corev1.Service)
		access string
		want   []string
	}{
		{"open", func(*corev1.Service) {}, "", nil},
		{"the field", fromSources("10.0.0.0/8"), "", []string{spec}},
		{"ours", sources, closed, []string{nothing(AnnotationSourceRanges)}},
		{
			"Kubernetes' annotation",
			annotated(KubernetesSourceRanges, "10.0.0.0/8"), closed, []string{nothing(KubernetesSourceRanges)},
		},
		{"none may come in", annotated(AnnotationSourceRanges, ""), closed, []string{nothing(AnnotationSourceRanges)}},
		{"the same in both", all(sources, fromSources("10.0.0.1/8")), "", []string{nothing(AnnotationSourceRanges), spec}},
		{"others in both", all(sources, fromSources("10.0.0.0/7")), closed, []string{nothing(AnnotationSourceRanges), spec}},
		{
			"deny beside the field",
			all(fromSources("10.0.0.0/8"), annotated(AnnotationSourceRangesDeny, "10.9.0.0/16")), closed,
			[]string{nothing(AnnotationSourceRangesDeny), spec},
		},
		{
			"unreadable deny",
			annotated(AnnotationSourceRangesDeny, "x"), closed, []string{nothing(AnnotationSourceRangesDeny)},
		},
		{"limits", all(annotated(AnnotationRateLimit, "7"), annotated(AnnotationLogDrops, "true")), "",
			[]string{nothing(AnnotationRateLimit + ", " + AnnotationLogDrops)}},
	} {
		s, problems := Compile(Objects{Services: []*corev1.Service{serviceObject("s", tt.change)}}, other)
		var reported []string
		for _, p := range problems {
			reported = append(reported, fmt.Sprintf("%s: %s", p.Reason, p.Message))
		}
		if got := accessText(s.Services[0].Access); got != tt.access || !s.OtherDataPath {
			t.Errorf("%s: access %q, want %q", tt.name, got, tt.access)
		}
		same(t, tt.name, tt.want, reported)
	}
	ranged := poolObject("ranged", 1, "192.0.2.0/28")
	ranged.Spec.SourceRanges = []string{"10.0.0.0/8"}
	s, problems := Compile(Objects{Pools: []*v1beta1.IPAddressPool{ranged, poolObject("open", 2, "192.0.2.16/28")}}, other)
	if !s.Pools[0].Restricted || s.Pools[1].Restricted {
		t.Errorf("pools %+v", s.Pools)
	}
	same(t, "problems", []string{"IPAddressPool ranged " + nothing("spec.sourceRanges")}, problemTexts(problems))
}

// FuzzSources: the list admits exactly the sources that its valid entries admit one by one.
func FuzzSources(f *testing.F) {
	for _, seed := range []string{
		"10.0.0.0/8", " 10.0.0.1/8 ,x", "::/0,0.0.0.0/0", "::ffff:1.2.3.4/97", "1.2.3.4/33", "fe80::1%a/64", ",\n,",
		"1.2.3.4/08", "10.0.0.0/8,10.0.0.0/7,9.0.0.0/8",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		entries := splitSources(text)
		s := readSources(entries)
		if !slices.IsSortedFunc(s.prefixes, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) }) {
			t.Errorf("%v is not ordered", s.prefixes)
		}
		for i, p := range s.prefixes {
			if p != p.Masked() || p.Addr().Is4In6() || p.Addr().Zone() != "" || i > 0 && s.prefixes[i-1].Overlaps(p) {
				t.Errorf("%v: %v is not canonical", s.prefixes, p)
			}
		}
		read := 0
		for _, entry := range entries {
			one := readSources([]string{entry})
			read += len(one.prefixes)
			for _, p := range one.prefixes {
				for _, a := range []netip.Addr{p.Addr(), lb.LastOf(p)} {
					if !slices.ContainsFunc(s.prefixes, func(q netip.Prefix) bool { return q.Contains(a) }) {
						t.Errorf("%q lets %s in, the list %v does not", entry, a, s.prefixes)
					}
				}
			}
			if strings.TrimSpace(entry) != "" && len(one.prefixes)+len(one.invalid) != 1 {
				t.Errorf("%q is neither read nor reported", entry)
			}
		}
		if read < len(s.prefixes) {
			t.Errorf("%d entries became %v", read, s.prefixes)
		}
	})
}

func all(changes ...func(*corev1.Service)) func(*corev1.Service) {
	return func(o *corev1.Service) {
		for _, change := range changes {
			change(o)
		}
	}
}
