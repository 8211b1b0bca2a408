package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

func poolsOfCloud() []*v1beta1.IPAddressPool {
	a := poolObject("public-a", 1, "192.0.2.0/28")
	a.Spec.Aliases, a.Spec.Tags, a.Spec.Classes = []string{"net-1", "subnet-a"}, []string{"fast", "cheap"}, []string{"dmz"}
	b := poolObject("public-b", 2, "192.0.2.16/28")
	b.Spec.Aliases, b.Spec.Tags = []string{"net-1", "subnet-b"}, []string{"fast"}
	c := poolObject("inner", 3, "10.1.0.0/28")
	c.Spec.Scope, c.Spec.Aliases = v1beta1.ScopeInternal, []string{"net-2"}
	return []*v1beta1.IPAddressPool{a, b, c}
}

func asking(pairs ...string) func(*corev1.Service) {
	return func(o *corev1.Service) {
		o.Annotations = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			o.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

func TestOpenStack(t *testing.T) {
	const os = osPrefix
	for _, tt := range []struct {
		name     string
		pairs    []string
		want     string
		reported string
	}{
		{"nothing", nil, "", ""},
		{"network", []string{os + "floating-network-id", "net-1"}, "public-a public-b", ""},
		{"network unknown", []string{os + "floating-network-id", "net-9"}, "none: UnknownNetwork", ""},
		{"subnet by glob", []string{os + "floating-subnet", "public-*"}, "public-a public-b", ""},
		{"subnet by expression", []string{os + "floating-subnet", "~public-[b-z]"}, "public-b", ""},
		{"an expression matches the whole name", []string{os + "floating-subnet", "~public"}, "none: UnknownNetwork", ""},
		{"subnet negated", []string{os + "floating-subnet", "!*-a"}, "public-b inner", ""},
		{"subnet by id wins", []string{os + "floating-subnet-id", "subnet-a", os + "floating-subnet", "*b", os + "floating-subnet-tags", "cheap"}, "public-a",
			"floating-subnet does nothing beside floating-subnet-id, which wins; floating-subnet-tags does nothing beside floating-subnet-id, which wins"},
		{"bad expression", []string{os + "floating-subnet", "~("}, "none: UnknownNetwork", `floating-subnet ("~(") cannot be read: error parsing regexp: missing closing ): ` + "`^(?:()$`"},
		{"any tag", []string{os + "floating-subnet-tags", "cheap,fast"}, "public-a public-b", ""},
		{"all tags", []string{os + "floating-subnet-tags", "&cheap, fast"}, "public-a", ""},
		{"none of the tags", []string{os + "floating-subnet-tags", "!cheap"}, "public-b inner", ""},
		{"not all tags", []string{os + "floating-subnet-tags", "!&cheap,fast"}, "public-b inner", ""},
		{"class wins", []string{os + "class", "dmz", os + "floating-network-id", "net-1", os + "subnet-id", "x"}, "class dmz",
			"floating-network-id does nothing beside class, which wins; subnet-id does nothing beside class, which wins"},
		{"internal", []string{osInternal, "true", os + "network-id", "net-2", os + "floating-network-id", "net-1"}, "internal inner", "floating-network-id does nothing for an internal Service"},
		{"external", []string{os + "network-id", "net-2"}, "", "network-id does nothing: it chooses the internal address, which an external Service does not have"},
		{"bad boolean stays external", []string{osInternal, "True"}, "", osInternal + ` ("True") is read as "false": write "true" or "false"`},
		{"own word wins", []string{osInternal, "true", AnnotationInternal, "false"}, "", osInternal + ` ("true") is not in force: holdfast.dev/internal is`},
		{"keep", []string{os + "keep-floatingip", "true", os + "hostname", "a.example"}, "keep a.example", ""},
		{"load balancer", []string{os + "load-balancer-id", "u-1", os + "load-balancer-address", "192.0.2.1"}, "joins u-1 of 2", ""},
		{"known, does nothing", []string{os + "port-id", "p", os + "timeout-tcp-inspect", "many"}, "",
			`port-id does nothing: there are no ports to name: a FloatingIP holds an address in advance; timeout-tcp-inspect ("many", which is not a number and would mean the default) does nothing: nothing stands between the client and the pods here that could do it`},
		{"bad limit", []string{os + "connection-limit", "many"}, "", `connection-limit is read as -1: "many" is not a number from 1 to 2147483647, nor -1 for no limit`},
		{"limit beside ours", []string{os + "connection-limit", "5", AnnotationConnectionLimit, "-1"}, "", `connection-limit ("5") is not in force: holdfast.dev/connection-limit is`},
		{"typo", []string{os + "floating-subnet-tag", "x", os + "zzz", ""}, "",
			os + "floating-subnet-tag is unknown; " + os + "zzz is unknown"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := Objects{Pools: poolsOfCloud(), Services: []*corev1.Service{serviceObject("s", asking(tt.pairs...))}}
			s, problems := Compile(o, served())
			if got := wishText(s.Services[0].Wish); got != tt.want {
				t.Errorf("wish %q, want %q", got, tt.want)
			}
			reported := ""
			for _, p := range problems {
				if p.Reason != lb.AnnotationIgnored || !p.Note {
					t.Errorf("problem %+v", p)
				}
				reported += p.Message
			}
			if diff := cmp.Diff(tt.reported, reported); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			off := served()
			off.IgnoreOpenStack = true
			if s, problems := Compile(o, off); wishText(s.Services[0].Wish) != "" || problems != nil {
				t.Errorf("turned off: %+v, %v", s.Services[0].Wish, problemTexts(problems))
			}
		})
	}
}

func wishText(w lb.Wish) string {
	var words []string
	add := func(is bool, text string) {
		if is {
			words = append(words, text)
		}
	}
	add(w.Class != "", "class "+w.Class)
	add(w.Internal, "internal")
	for _, p := range w.PoolWishes {
		add(true, strings.Join(p.Pools, " "))
		add(len(p.Pools) == 0, "none: "+string(p.Reason))
	}
	add(w.KeepFloatingIP, "keep")
	add(w.Hostname != "", w.Hostname)
	add(w.LoadBalancerID != "" && w.MaxShared == 2, "joins "+w.LoadBalancerID+" of 2")
	return strings.TrimSpace(strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), " "))
}

func FuzzMatchers(f *testing.F) {
	for _, seed := range []string{"a", "*", "!*", "~a.*", "!~(", "{a,b", "?", "&a,b", "!&", ",,", "~(?P<n>", "é*"} {
		f.Add(seed)
	}
	p := lb.Pool{Name: "public-a", PoolTerms: lb.PoolTerms{Aliases: []string{"net"}, Tags: []string{"a", "b"}}}
	f.Fuzz(func(t *testing.T, text string) {
		for _, read := range []func(string) (func(lb.Pool) bool, error){nameMatcher, tagMatcher} {
			match, err := read(text)
			negated, otherErr := read("!" + text)
			if strings.HasPrefix(text, "!") || err != nil {
				continue
			}
			if otherErr != nil || match(p) == negated(p) {
				t.Errorf("%q and its negation agree (%v)", text, otherErr)
			}
		}
	})
}

// TestOpenStackDefaults: what OCCM reads from its configuration.
func TestOpenStackDefaults(t *testing.T) {
	opt := served()
	opt.Internal, opt.MaxShared = true, 5
	var err error
	if opt.NodeSelector, err = ParseNodeSelector("edge=yes"); err != nil {
		t.Fatal(err)
	}
	if none, err := ParseNodeSelector(""); none != nil || err != nil {
		t.Errorf("no selector is %v, %v", none, err)
	}
	edge := []lb.Selector{opt.NodeSelector}
	for _, tt := range []struct {
		name     string
		pairs    []string
		internal bool
		nodes    []lb.Selector
		reported string
	}{
		{"nothing", nil, true, edge, ""},
		{"OpenStack's external", []string{osInternal, "false"}, true, edge, osInternal + ` ("false") is not in force: Services of this cluster are internal`},
		{"our external", []string{AnnotationInternal, "false"}, false, edge, ""},
		{"all nodes", []string{osPrefix + "node-selector", ""}, true, nil, ""},
		{"other nodes", []string{osPrefix + "node-selector", "rack"}, true, []lb.Selector{{{Key: "rack", Operator: lb.Exists}}}, ""},
		{"other nodes by our annotation", []string{AnnotationNodeSelector, "rack"}, true, []lb.Selector{{{Key: "rack", Operator: lb.Exists}}}, ""},
	} {
		s, problems := Compile(Objects{Services: []*corev1.Service{serviceObject("s", asking(tt.pairs...))}}, opt)
		w := s.Services[0].Wish
		if diff := cmp.Diff(tt.nodes, w.NodeSelectors, cmpopts.EquateEmpty()); diff != "" || w.Internal != tt.internal {
			t.Errorf("%s: internal %v, nodes -want +got\n%s", tt.name, w.Internal, diff)
		}
		if got := strings.Join(problemTexts(problems), ""); !strings.Contains(got, tt.reported) || tt.reported == "" && got != "" {
			t.Errorf("%s: reported %q, want %q", tt.name, got, tt.reported)
		}
	}
	s, _ := Compile(Objects{Services: []*corev1.Service{serviceObject("s", asking(OpenStackID, "u"))}}, opt)
	if got := s.Services[0].MaxShared; got != 5 {
		t.Errorf("%d may share, want 5", got)
	}
	opt.IgnoreOpenStack = true
	s, _ = Compile(Objects{Services: []*corev1.Service{serviceObject("s")}}, opt)
	if w := s.Services[0].Wish; w.Internal || w.NodeSelectors != nil {
		t.Errorf("ignored, and yet %+v", w)
	}
}
