package lb

import (
	_ "embed" // for reasons.yaml
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// maxMessage bounds a message: the API server takes no more than 32768 bytes.
const maxMessage = 4096

// WithRemedies returns a message for a condition or an Event: what is wrong, and what to do about each of these Reasons
// once. It adds nothing for a Reason whose remedy is nothing, so that the message of a healthy object stays as it is. A
// message that is too long is cut, its remedies are not.
func WithRemedies(message string, reasons ...Reason) string {
	var remedies []string
	for _, r := range reasons {
		do := r.Remedy()
		if do != "" && !strings.HasPrefix(do, "Nothing") && !slices.Contains(remedies, do) {
			remedies = append(remedies, do)
		}
	}
	if len(remedies) == 0 {
		return Line(message, maxMessage)
	}

	advice := strings.Join(remedies, " ")
	message = strings.TrimRight(message, " .:;,")
	message = Line(message, max(maxMessage/2, maxMessage-len(". ")-len(advice)))
	switch {
	case message == "":
	case strings.HasSuffix(message, "…"):
		message += " "
	default:
		message += ". "
	}
	return Line(message+advice, maxMessage)
}
