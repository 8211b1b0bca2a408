package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/holdfast-lb/holdfast/internal/explain"
	"sigs.k8s.io/yaml"
)

// show prints a value in the format that the user asked for.
func (s *seat) show(w io.Writer, v any, text func(io.Writer) error) (err error) {
	var out []byte
	switch s.output {
	case "":
		return text(w)
	case "json":
		out, err = json.MarshalIndent(v, "", "  ")
		out = append(out, '\n')
	case "yaml":
		out, err = yaml.Marshal(v)
	default:
		err = fmt.Errorf("unknown output format %q: json and yaml are known", s.output)
	}
	if err == nil {
		_, err = w.Write(out)
	}
	return err
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
func printChange(w io.Writer, c explain.Change) error {
	if c.Empty() {
		fmt.Fprintln(w, "Nothing would change.")
	}
	for i, lines := range [][]string{c.Faults, c.Addresses, c.Announcers, c.Filters} {
		if len(lines) > 0 {
			fmt.Fprintf(w, "%s\n  %s\n", []string{"Problems", "Addresses", "Announcers", "Who may connect"}[i], strings.Join(lines, "\n  "))
		}
	}
	return nil
}
