package layer2

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestNoDeadTimers: every configurable timer is used somewhere, and a configured value
// stays.
//
// Trap: settings that are stored and never used, such as renewDeadline and retryPeriod (PureLB).
func TestNoDeadTimers(t *testing.T) {
	read := map[string]bool{}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			// This file writes the defaults, which is no use of a timer.
			if f, ok := n.(*ast.FuncDecl); ok && f.Name.Name == "withDefaults" {
				return false
			}
			if s, ok := n.(*ast.SelectorExpr); ok {
				read[s.Sel.Name] = true
			}
			return true
		})
	}
	var set Timers
	v := reflect.ValueOf(&set).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i).Addr().Interface().(type) {
		case *[]time.Duration:
			*f = []time.Duration{time.Duration(i + 1)}
		case *time.Duration:
			*f = time.Duration(i + 1)
		case *int:
			*f = i + 1
		}
		if name := v.Type().Field(i).Name; !read[name] {
			t.Errorf("%s is never read", name)
		}
	}
	if got := set.withDefaults(); !reflect.DeepEqual(got, set) {
		t.Errorf("what was set, %+v, became %+v", set, got)
	}
	defaults := reflect.ValueOf(Timers{}.withDefaults())
	for i := range defaults.NumField() {
		if defaults.Field(i).IsZero() {
			t.Errorf("%s has no default", defaults.Type().Field(i).Name)
		}
	}
}
