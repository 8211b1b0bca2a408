package lb

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Few is how many names a message has.
const Few = 5

// SomeOf lists the first five names and counts the rest, which keeps messages short.
func SomeOf(names []string) string {
	if len(names) <= Few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:Few], ", "), len(names)-Few)
}

// Line makes one line of at most so many bytes of a text that others worded: what cannot be printed becomes a space.
func Line(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) <= most {
		return text
	}
	const cut = " …"
	return strings.ToValidUTF8(text[:most-len(cut)], "") + cut
}
