package openstack

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
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
	return func(p lb.Pool) bool { return p.Answers(value) }, nil
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
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return nil, err
	}
	if n := states(parsed); n > maxPattern {
		return nil, fmt.Errorf("it has %d states, with all repetitions: write a pattern with at most %d", n, maxPattern)
	}
	re := regexp.MustCompile(expression) // which was parsed
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

// maxPattern bounds the states of a pattern, with all its repetitions: it is tried on each name of each pool.
const maxPattern = 256

// states estimates the states of a compiled expression. Classes of letters count by their size.
func states(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)/64
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n += states(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return n
}
