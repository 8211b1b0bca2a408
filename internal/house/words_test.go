package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// words are what a first reader stumbles over, with what to write instead; CONTRIBUTING.md has the same table.
var words = []struct {
	name, instead string
	pattern       *regexp.Regexp
	documents     bool // not in Go
}{
	{
		name: "that of, those of, one that, the one of", instead: "repeat the noun",
		pattern: regexp.MustCompile(`(?i)\b(that of|those of|one that|the one of)\b`),
	},
	{name: "mend", instead: "fix", pattern: regexp.MustCompile(`(?i)\bmend(s|ed|ing)?\b`)},
	{name: "also if", instead: "even if", pattern: regexp.MustCompile(`(?i)\balso if\b`)},
	{
		name: "somebody, nobody", instead: "name the machine or the person: no node, another machine",
		pattern: regexp.MustCompile(`(?i)\b(somebody|nobody)\b`),
	},
	{
		name: "is said, is told", instead: "is reported", documents: true,
		pattern: regexp.MustCompile(`(?i)\b(is|are|be|was|were|been) (said|told)\b`),
	},
}

// badNames are identifiers that say nothing of what they hold, or that have another word in the field.
var badNames = regexp.MustCompile(`^(is|was|said|now|does|(least|most)([A-Z].*)?)$`)

// faults are the places with such words in a text, by lines.
func faults(text string, document bool) []string {
	var out []string
	if document {
		text = regexp.MustCompile("(?s)```.*?```|`[^`]*`").ReplaceAllStringFunc(text,
			func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) })
	}
	for n, line := range strings.Split(text, "\n") {
		for _, w := range words {
			if found := w.pattern.FindString(line); found != "" && (document || !w.documents) {
				out = append(out, fmt.Sprintf("line %d: %q: write %s", n+1, found, w.instead))
			}
		}
	}
	return out
}

// goFaults are the places with such words in the comments, the literals and the declared names of a Go file.
func goFaults(set *token.FileSet, file *ast.File) []string {
	var out []string
	add := func(pos token.Pos, found []string) {
		for _, f := range found {
			out = append(out, fmt.Sprintf("%s: %s", set.Position(pos), f))
		}
	}
	for _, group := range file.Comments {
		add(group.Pos(), faults(strings.Join(strings.Fields(group.Text()), " "), false))
	}
	name := func(ids ...*ast.Ident) {
		for _, id := range ids {
			if badNames.MatchString(id.Name) {
				add(id.Pos(), []string{fmt.Sprintf("the name %q: write what it holds; min and max", id.Name)})
			}
		}
	}
	for n := range ast.Preorder(file) {
		switch n := n.(type) {
		case *ast.BasicLit:
			if text, ok := literal(n); ok {
				add(n.Pos(), faults(text, false))
			}
		case *ast.AssignStmt:
			for _, e := range n.Lhs {
				if id, ok := e.(*ast.Ident); ok && n.Tok == token.DEFINE {
					name(id)
				}
			}
		case *ast.ValueSpec:
			name(n.Names...)
		case *ast.Field:
			name(n.Names...)
		case *ast.FuncDecl:
			name(n.Name)
		case *ast.TypeSpec:
			name(n.Name)
		}
	}
	return out
}

// maxLine is the length of a line of Go that one reads at a glance.
const maxLine = 120

// longLines returns the lines of a Go file beyond maxLine. Raw strings are data and do not count. A marker of
// kubebuilder must be one line.
func longLines(file *ast.File, text string) []string {
	for n := range ast.Preorder(file) {
		if l, ok := n.(*ast.BasicLit); ok && strings.HasPrefix(l.Value, "`") {
			text = strings.Replace(text, l.Value, strings.Repeat("\n", strings.Count(l.Value, "\n")), 1)
		}
	}
	var out []string
	for n, line := range strings.Split(text, "\n") {
		length := utf8.RuneCountInString(line)
		if length > maxLine && !strings.Contains(line, "// +kubebuilder:") {
			out = append(out, fmt.Sprintf("line %d: %d characters, more than %d", n+1, length, maxLine))
		}
	}
	return out
}

func TestWords(t *testing.T) {
	contributing := documents(t)["CONTRIBUTING.md"]
	for _, w := range words {
		if !strings.Contains(contributing, w.name) || !strings.Contains(contributing, w.instead) {
			t.Errorf("CONTRIBUTING.md does not have the word %q with %q", w.name, w.instead)
		}
	}
	for page, text := range documents(t) {
		if !strings.HasPrefix(page, "docs/reference/") { // it is made of Go and of values.yaml
			for _, f := range faults(text, true) {
				t.Errorf("%s: %s", page, f)
			}
		}
	}
	for _, f := range faults(read(t, chart+"/values.yaml"), true) {
		t.Errorf("values.yaml: %s", f)
	}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		generated := strings.HasPrefix(d.Name(), "zz_generated")
		if d.IsDir() || !strings.HasSuffix(path, ".go") || generated {
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, l := range longLines(file, read(t, path)) {
			t.Errorf("%s: %s", path, l)
		}
		if d.Name() == "words_test.go" { // it has the words
			return nil
		}
		for _, f := range goFaults(set, file) {
			t.Error(f)
		}
		return nil
	})
	must(t, err)
}

// TestWordsCanFail: each word is found, in a comment, in a literal, and in a name.
func TestWordsCanFail(t *testing.T) {
	const text = `package x

// f takes one that is there, and those of others.
func f(is bool, leastKernel int) string { now := "nobody mends it, also if"; return now }`
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "x.go", text, parser.ParseComments)
	must(t, err)
	if found := goFaults(set, file); len(found) != 7 {
		t.Errorf("found %d places, want 7: %q", len(found), found)
	}
	if found := faults("It is said.\n`nobody`\n", true); len(found) != 1 {
		t.Errorf("found %q in a document", found)
	}
}

// TestLongLinesCanFail: a long line of code or comment is found, a raw string and a marker of kubebuilder are not.
func TestLongLinesCanFail(t *testing.T) {
	long := strings.Repeat("x", maxLine)
	text := "package x\n\nconst a = \"" + long + "\"\n\n// " + long + "\nconst b = `\n" + long + long + "`\n\n" +
		"// +kubebuilder:" + long + "\ntype c int\n\nconst d = `" + long + "` + \"" + long + "\"\n"
	file, err := parser.ParseFile(token.NewFileSet(), "x.go", text, parser.ParseComments)
	must(t, err)
	var lines []string
	for _, l := range longLines(file, text) {
		lines = append(lines, strings.SplitN(l, ":", 2)[0])
	}
	if got := strings.Join(lines, ", "); got != "line 3, line 5, line 12" {
		t.Errorf("found %s", got)
	}
}
