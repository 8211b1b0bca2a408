package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/holdfast-lb/holdfast/internal/explain"
	"sigs.k8s.io/yaml"
)

// printed writes a value in the format that the user asked for; false if that is text.
func printed(w io.Writer, format string, v any) (bool, error) {
	var out []byte
	var err error
	switch format {
	case "":
		return false, nil
	case "json":
		if out, err = json.MarshalIndent(v, "", "  "); err == nil {
			out = append(out, '\n')
		}
	case "yaml":
		out, err = yaml.Marshal(v)
	default:
		err = fmt.Errorf("unknown output format %q: json and yaml are known", format)
	}
	if err == nil {
		_, err = w.Write(out)
	}
	return true, err
}

// printReports writes reports for people: a line for each step, and the first thing to do at the end.
func printReports(w io.Writer, reports []explain.Report) error {
	for _, r := range reports {
		fmt.Fprintln(w, r.Subject)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, s := range r.Steps {
			text := s.Text
			if s.Reason != "" {
				text = string(s.Reason) + ": " + text
			}
			fmt.Fprintf(t, "  %s\t%s\t%s\n", s.Verdict, s.Name, text)
			for _, d := range s.Details {
				fmt.Fprintf(t, "\t\t  %s\n", d)
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
		fmt.Fprintf(w, "First: %s\n", r.First)
	}
	return nil
}

// printChange writes what would change, for people.
func printChange(w io.Writer, c explain.Change) {
	if c.Empty() {
		fmt.Fprintln(w, "Nothing would change.")
	}
	for _, part := range []struct {
		name  string
		lines []string
	}{{"Problems", c.Faults}, {"Addresses", c.Addresses}, {"Announcers", c.Announcers}, {"Who may connect", c.Filters}} {
		if len(part.lines) > 0 {
			fmt.Fprintln(w, part.name)
		}
		for _, line := range part.lines {
			fmt.Fprintln(w, "  "+line)
		}
	}
}
