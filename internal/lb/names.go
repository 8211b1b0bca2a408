package lb

import (
	"fmt"
	"strings"
)

// SomeOf lists the first names and counts the rest, so that a message stays a sentence.
func SomeOf(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}
