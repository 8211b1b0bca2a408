package openstack

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

func poolsOfCloud() []lb.Pool {
	return []lb.Pool{
		{Name: "public-a", PoolTerms: lb.PoolTerms{
			Aliases: []string{"net-1", "subnet-a"}, Tags: []string{"fast", "cheap"}, Classes: []string{"dmz"},
		}},
		{Name: "public-b", PoolTerms: lb.PoolTerms{Aliases: []string{"net-1", "subnet-b"}, Tags: []string{"fast"}}},
		{Name: "inner", PoolTerms: lb.PoolTerms{Internal: true, Aliases: []string{"net-2"}}},
	}
}

func TestTranslate(t *testing.T) {
	const os = Prefix
	const own = "holdfast.dev/internal"
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
		{"subnet by id wins", []string{os + "floating-subnet-id", "subnet-a", os + "floating-subnet", "*b",
			os + "floating-subnet-tags", "cheap"}, "public-a",
			"floating-subnet does nothing beside floating-subnet-id, which wins; floating-subnet-tags does nothing beside " +
				"floating-subnet-id, which wins"},
		{"bad expression", []string{os + "floating-subnet", "~("}, "none: UnknownNetwork",
			`floating-subnet ("~(") cannot be read: error parsing regexp: missing closing ): ` + "`^(?:()$`"},
		{"any tag", []string{os + "floating-subnet-tags", "cheap,fast"}, "public-a public-b", ""},
		{"all tags", []string{os + "floating-subnet-tags", "&cheap, fast"}, "public-a", ""},
		{"none of the tags", []string{os + "floating-subnet-tags", "!cheap"}, "public-b inner", ""},
		{"not all tags", []string{os + "floating-subnet-tags", "!&cheap,fast"}, "public-b inner", ""},
		{"class wins", []string{os + "class", "dmz", os + "floating-network-id", "net-1", os + "subnet-id", "x"}, "class dmz",
			"floating-network-id does nothing beside class, which wins; subnet-id does nothing beside class, which wins"},
		{"internal", []string{Internal, "true", os + "network-id", "net-2", os + "floating-network-id", "net-1"},
			"internal inner",
			"floating-network-id does nothing for an internal Service"},
		{"external", []string{os + "network-id", "net-2"}, "",
			"network-id does nothing: it chooses the internal address, which an external Service does not have"},
		{"bad boolean stays external", []string{Internal, "True"}, "",
			Internal + ` ("True") is read as "false": write "true" or "false"`},
		{"own word wins", []string{Internal, "true", own, "false"}, "",
			Internal + ` ("true") is not in force: holdfast.dev/internal is`},
		{"keep", []string{os + "keep-floatingip", "true", Hostname, "a.example"}, "keep", ""},
		{"load balancer", []string{os + "load-balancer-id", "u-1", os + "load-balancer-address", "192.0.2.1"},
			"joins u-1 of 2", ""},
		{"known, does nothing", []string{os + "port-id", "p", os + "timeout-tcp-inspect", "many"}, "",
			`port-id does nothing: there are no ports to name: a FloatingIP holds an address in advance`},
		{"typo", []string{os + "floating-subnet-tag", "x", os + "zzz", ""}, "",
			os + "floating-subnet-tag is unknown; " + os + "zzz is unknown"},
	} {
		annotations := map[string]string{}
		for i := 0; i < len(tt.pairs); i += 2 {
			annotations[tt.pairs[i]] = tt.pairs[i+1]
		}
		var w, ignored lb.Wish
		_, hasInternal := annotations[own]
		notes := (&Translator{Pools: poolsOfCloud()}).Translate(annotations, hasInternal, &w)
		if got := wishText(w); got != tt.want {
			t.Errorf("%s: wish %q, want %q", tt.name, got, tt.want)
		}
		if diff := cmp.Diff(tt.reported, strings.Join(notes, "; ")); diff != "" {
			t.Errorf("%s: -want +got\n%s", tt.name, diff)
		}
		if notes := (&Translator{Options{Ignore: true, Internal: true}, poolsOfCloud()}).Translate(annotations, hasInternal,
			&ignored); wishText(ignored) != "" ||
			notes != nil {
			t.Errorf("%s: turned off: %+v, %v", tt.name, ignored, notes)
		}
	}
}

func wishText(w lb.Wish) string {
	var words []string
	add := func(wanted bool, text string) {
		if wanted {
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

// TestMaxShared: what OCCM reads from its configuration. (Options.Internal is tested in package config.)
func TestMaxShared(t *testing.T) {
	var w lb.Wish
	if (&Translator{Options: Options{MaxShared: 5}}).Translate(map[string]string{ID: "u"}, false, &w); w.MaxShared != 5 {
		t.Errorf("%d may share, want 5", w.MaxShared)
	}
}

// TestRecords: what OCCM would record stands where it is asked for, and an id of ours goes where it would ask to share.
func TestRecords(t *testing.T) {
	holds := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	keep := Prefix + "keep-floatingip"
	for name, tt := range map[string]struct {
		have   map[string]string
		copied bool
		joins  string
		all    bool
		holds  []netip.Addr
		want   string
	}{
		"none asks":         {nil, false, "", false, holds, "[address:]"},
		"all are annotated": {nil, false, "", true, holds, "[address:192.0.2.1 id:u]"},
		"it asks":           {map[string]string{keep: "true"}, false, "", false, holds, "[address:192.0.2.1 id:u]"},
		"internal asks":     {map[string]string{Internal: "true"}, false, "", false, holds, "[address:192.0.2.1 id:u]"},
		"the records do not ask": {map[string]string{ID: "u", Address: "192.0.2.1"}, false, "u", false, holds,
			"[address: id:]"},
		"it holds nothing":        {map[string]string{keep: "true", ID: "u"}, false, "u", true, nil, "[address: id:]"},
		"it shares another's":     {map[string]string{ID: "o"}, false, "o", false, holds, "[address:192.0.2.1]"},
		"a copy":                  {map[string]string{ID: "o"}, true, "", false, holds, "[address: id:]"},
		"a copy that asks for it": {map[string]string{ID: "o"}, true, "o", false, holds, "[address:192.0.2.1]"},
	} {
		records := Options{AnnotateAll: tt.all}.Records(tt.have, "u", tt.copied, tt.joins, tt.holds)
		var got []string
		for _, key := range slices.Sorted(maps.Keys(records)) {
			got = append(got, strings.TrimPrefix(key, Prefix+"load-balancer-")+":"+records[key])
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("%s: %v, want %s", name, got, tt.want)
		}
	}
}

// TestPatternBounds: no pattern costs more than its bound, and the remarks on annotations do not grow with their
// number.
func TestPatternBounds(t *testing.T) {
	many := map[string]string{}
	for i := range 5_000 {
		many[fmt.Sprint(Prefix, "x", i)] = ""
	}
	for want, annotations := range map[string]map[string]string{
		"states, with all repetitions: write a pattern with at most 256": {Prefix + "floating-subnet": `~\pL{1000}`},
		"repetitions: write a pattern with at most 256":                  {Prefix + "floating-subnet": `~((.?){30}){30}`},
		"states, with all repetitions: write": {Prefix + "floating-subnet": strings.Repeat("*a",
			200)},
		"too many (5000) to name more": many,
	} {
		var w lb.Wish
		notes := strings.Join((&Translator{Pools: poolsOfCloud()}).Translate(annotations, false, &w), "; ")
		if len(notes) > 4096 || !strings.Contains(notes, want) || len(w.PoolWishes) > 0 && len(w.PoolWishes[0].Pools) > 0 {
			t.Errorf("%d bytes: %.300q, want %q", len(notes), notes, want)
		}
	}
}
