package lb

import (
	_ "embed" // for reasons.yaml
	"path"
	"regexp"
	"strconv"
	"sync"
)

//go:embed reasons.yaml
var reasonsYAML string

// reasonLine is a line of reasons.yaml: the name, and what to do.
var reasonLine = regexp.MustCompile(`(?m)^(\w+): \{in: \[[^\]]*\], do: (.*)\}$`)

// linkPattern is a link of Markdown: its words, and its target.
var linkPattern = regexp.MustCompile(`\[([^\]]+)\]\(([^)]+)\)`)

var remedies = sync.OnceValue(func() map[Reason]string {
	out := map[Reason]string{}
	for _, line := range reasonLine.FindAllStringSubmatch(reasonsYAML, -1) {
		do := line[2]
		if text, err := strconv.Unquote(do); err == nil {
			do = text
		}
		out[Reason(line[1])] = linkPattern.ReplaceAllStringFunc(do, func(link string) string {
			parts := linkPattern.FindStringSubmatch(link)
			return parts[1] + " (" + path.Join("docs/reference", parts[2]) + ")"
		})
	}
	return out
})

// Remedy returns what an operator does about a Reason, in a sentence: the same that docs/reference/reasons.md has. It
// is "" if there is nothing to do, and for a Reason that this version does not know.
func (r Reason) Remedy() string {
	if do := remedies()[r]; do != "nothing" {
		return do
	}
	return ""
}
