package lb

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// TestLine: what others worded stays one printable line of bounded length.
func TestLine(t *testing.T) {
	for _, tt := range []struct {
		text  string
		limit int
		want  string
	}{
		{"cannot connect: connection refused", 512, "cannot connect: connection refused"},
		{"a\nb\x1b[31mc\u202ed\xff", 512, "a b [31mc d "},
		{"Wartung um 3 Uhr früh", 512, "Wartung um 3 Uhr früh"},
		{strings.Repeat("ü", 10), 11, "üüü …"},
		{strings.Repeat("\xff", 10), 10, strings.Repeat(" ", 10)},
	} {
		got := Line(tt.text, tt.limit)
		if got != tt.want || len(got) > tt.limit || !utf8.ValidString(got) {
			t.Errorf("%q: %q of %d bytes, want %q", tt.text, got, len(got), tt.want)
		}
	}
}
