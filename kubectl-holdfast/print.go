package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// printable is a writer that replaces unprintable characters by a space. Tenants choose texts of the cluster, and an
// escape sequence among them would write to the operator's terminal.
type printable struct{ io.Writer }

// Write implements io.Writer.
func (p printable) Write(text []byte) (int, error) {
	shown := strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (r == utf8.RuneError || !unicode.IsPrint(r)) {
			return ' '
		}
		return r
	}, string(text))

	_, err := io.WriteString(p.Writer, shown)
	if err != nil {
		return 0, err
	}

	return len(text), nil
}

// maxText bounds a text of a report, in bytes. A condition of Kubernetes is not longer.
const maxText = 32768

// printReports writes reports for people: a line for each step, and the first thing to do at the end. No text of the
// cluster makes a line of its own.
func printReports(w io.Writer, reports []Report) error {
	for _, r := range reports {
		fmt.Fprintln(w, lb.Line(r.Subject, maxText))
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, s := range r.Steps {
			text := s.Text
			if s.Reason != "" {
				text = string(s.Reason) + ": " + text
			}

			fmt.Fprintf(
				t,
				"  %s\t%s\t%s\n",
				lb.Line(string(s.Verdict), maxText),
				lb.Line(s.Name, maxText),
				lb.Line(text, maxText),
			)

			for _, d := range s.Details {
				fmt.Fprintf(t, "\t\t  %s\n", lb.Line(d, maxText))
			}
		}

		if err := t.Flush(); err != nil {
			return err
		}

		fmt.Fprintf(w, "First: %s\n", lb.Line(r.First, maxText))
	}

	return nil
}
