package lb

import (
	"fmt"
	"strings"
)

// SomeOf lists the first five names and counts the rest, which keeps messages short.
func SomeOf(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}
