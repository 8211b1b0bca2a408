package lb

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Key names a namespaced object.
type Key struct {
	Namespace, Name string
}

// ParseKey reads "namespace/name".
func ParseKey(text string) Key {
	namespace, name, _ := strings.Cut(text, "/")
	return Key{namespace, name}
}

// String returns "namespace/name".
func (k Key) String() string { return k.Namespace + "/" + k.Name }

// MarshalText makes logs and debug pages show a key as "namespace/name".
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Compare orders keys by namespace, then by name.
func (k Key) Compare(o Key) int {
	return cmp.Or(strings.Compare(k.Namespace, o.Namespace), strings.Compare(k.Name, o.Name))
}

// Object names a configuration object a Problem is about.
type Object struct {
	// Kind is the API kind, for example IPAddressPool or Service.
	Kind string
	// Namespace is empty for cluster-scoped kinds.
	Namespace string
	Name      string
}

// String returns "Kind namespace/name", or "Kind name" for cluster-scoped kinds.
func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// MarshalText makes logs and debug pages show an object as String does.
func (o Object) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// Problem is something that a user must fix: one word, and one sentence that says what is wrong. WithRemedies adds what
// to do.
// It never stops other objects from being served.
type Problem struct {
	Object  Object
	Reason  Reason
	Message string
	// Note: the whole object is in force, but the user should know how it is read.
	Note bool
	// Waits: the object gets nothing new because of it.
	Waits bool
}

// Few is how many names a message has.
const Few = 5

// SomeOf lists the first five names, or other items, and counts the rest: a message must not grow with the cluster.
func SomeOf[T any](items []T) string {
	words := make([]string, 0, Few)
	for _, item := range items[:min(Few, len(items))] {
		words = append(words, fmt.Sprint(item))
	}
	out := strings.Join(words, ", ")
	if more := len(items) - Few; more > 0 {
		out += fmt.Sprintf(" and %d more", more)
	}
	return out
}

// Line makes one line of at most so many bytes of a text that others worded: what cannot be printed becomes a space.
func Line(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) <= limit {
		return text
	}
	const cut = " …"
	return strings.ToValidUTF8(text[:limit-len(cut)], "") + cut
}

// Secret is a text that no log, no debug page and no status shows: whatever formats it gets stars. A conversion to
// string reveals it, and so does fmt in an unexported field, of which it calls no method.
type Secret string

// shown is the same for every text but the empty one, whatever its length.
func (s Secret) shown() string {
	if s == "" {
		return ""
	}
	return "***"
}

// Format implements fmt.Formatter for all verbs: a method String would not hide the text from %x.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.shown()) }

// MarshalText hides the text from JSON and from logs.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.shown()), nil }
