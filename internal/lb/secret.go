package lb

import (
	"fmt"
	"io"
)

// Secret is a text that no log, no debug page and no status shows: whatever formats it gets stars. A conversion to
// string reveals it, and so does fmt in an unexported field, of which it calls no method.
type Secret string

// hidden stands for every Secret but the empty one, also for its length.
const hidden = "***"

func (s Secret) shown() string {
	if s == "" {
		return ""
	}
	return hidden
}

// Format implements fmt.Formatter for all verbs: a method String would not hide the text from %x.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.shown()) }

// MarshalText hides the text from JSON and from logs.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.shown()), nil }
