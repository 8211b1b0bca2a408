package config

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// matcherFor returns which pools an annotation matches. Ids and names match
// a pool's aliases and its own name.
func matcherFor(annotation, value string) (func(lb.Pool) bool, error) {
	switch annotation {
	case "floating-subnet":
		return nameMatcher(value)
	case "floating-subnet-tags":
		return tagMatcher(value)
	}
	return func(p lb.Pool) bool { return slices.Contains(names(p), value) }, nil
}

func names(p lb.Pool) []string { return append([]string{p.Name}, p.Aliases...) }

// nameMatcher reads OCCM's grammar: a glob, or after "~" a regular expression;
// a leading "!" negates. Regular expressions of RE2 match in linear time.
func nameMatcher(pattern string) (func(lb.Pool) bool, error) {
	pattern, not := strings.CutPrefix(pattern, "!")
	expression, plain := strings.CutPrefix(pattern, "~")
	if !plain {
		expression = globExpression(pattern)
	}
	expression = "^(?:" + expression + ")$"
	if err := patternFault(expression); err != nil {
		return nil, err
	}
	re, err := regexp.Compile(expression)
	if err != nil {
		return nil, err
	}
	return func(p lb.Pool) bool { return slices.ContainsFunc(names(p), re.MatchString) != not }, nil
}

// globExpression writes a glob as a regular expression: * matches any characters,
// ? matches one, {a,b} matches either.
func globExpression(glob string) string {
	var b strings.Builder
	depth := 0
	for _, c := range glob {
		switch {
		case c == '*':
			b.WriteString(".*")
		case c == '?':
			b.WriteString(".")
		case c == '{':
			depth++
			b.WriteString("(?:")
		case c == '}' && depth > 0:
			depth--
			b.WriteString(")")
		case c == ',' && depth > 0:
			b.WriteString("|")
		default:
			b.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	return b.String() + strings.Repeat(")", depth)
}

// tagMatcher reads OCCM's grammar: a pool must have one tag of the list, or all
// after a leading "&"; a leading "!" negates.
func tagMatcher(text string) (func(lb.Pool) bool, error) {
	text, not := strings.CutPrefix(text, "!")
	text, all := strings.CutPrefix(text, "&")
	var tags []string
	for tag := range strings.SplitSeq(text, ",") {
		if tag = strings.TrimSpace(tag); tag != "" {
			tags = append(tags, tag)
		}
	}
	if len(tags) == 0 {
		return nil, errors.New("it names no tag")
	}
	return func(p lb.Pool) bool {
		lacks := func(tag string) bool { return !slices.Contains(p.Tags, tag) }
		has := func(tag string) bool { return slices.Contains(p.Tags, tag) }
		if all {
			return slices.ContainsFunc(tags, lacks) == not
		}
		return slices.ContainsFunc(tags, has) != not
	}, nil
}

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
