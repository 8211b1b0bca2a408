package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// maxWords are the words of pages that have a bound of their own.
var maxWords = map[string]int{
	"README.md": 950, "CHANGELOG.md": 500, "docs/design.md": 3000,
}

// documents returns the README and the pages of docs/ by their paths in the repository.
func documents(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		paths, err := filepath.Glob("../../" + pattern)
		must(t, err)
		for _, p := range paths {
			out[strings.TrimPrefix(p, "../../")] = read(t, p)
		}
	}
	return out
}

// maxTotal are the words of all documents but for the evidence, the generated reference and the runbook, which grows
// with the alerts. Pages about clusters of others (plugins, distributions, load balancers to leave, GitOps) are a third
// of it.
const maxTotal = 20000

func TestDocumentsAreShort(t *testing.T) {
	pages, total := documents(t), 0
	for page, text := range pages {
		counts := !strings.HasPrefix(page, "docs/evidence/") && !strings.HasPrefix(page, "docs/reference/") &&
			page != "docs/runbooks.md"
		if counts {
			total += len(strings.Fields(text))
		}
	}
	if total > maxTotal {
		t.Errorf("the documents have %d words, at most %d: move what grew into docs/evidence", total, maxTotal)
	}
	for page, limit := range maxWords {
		if n := len(strings.Fields(pages[page])); n == 0 || n > limit {
			t.Errorf("%s has %d words, at most %d: move what grew into docs/evidence", page, n, limit)
		}
	}
}

var (
	linkPattern    = regexp.MustCompile(`\]\(([^)]+)\)`)
	headingPattern = regexp.MustCompile(`(?m)^#+ (.+)$`)
	notInAnchor    = regexp.MustCompile(`[^a-z0-9 _-]`)
)

// anchors returns the headings of a page as links name them.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, h := range headingPattern.FindAllStringSubmatch(text, -1) {
		out[strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-")] = true
	}
	return out
}

func TestLinks(t *testing.T) {
	pages := documents(t)
	for from, text := range pages {
		for _, l := range linkPattern.FindAllStringSubmatch(text, -1) {
			target, anchor, named := strings.Cut(l[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			to := from
			if target != "" {
				to = filepath.Join(filepath.Dir(from), target)
			}
			if _, err := os.Stat(filepath.Join("../..", to)); err != nil {
				t.Errorf("%s links to %s, which is not there", from, l[1])
			} else if named && !anchors(pages[to])[anchor] {
				t.Errorf("%s links to %s, a heading that is not there", from, l[1])
			}
		}
	}
}

// sources returns the shipped Go files by path.
func sources(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, tree := range []string{"api", "controller", "internal", "kubectl-holdfast", "proxy", "speaker"} {
		err := filepath.WalkDir("../../"+tree, func(p string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go") {
				return err
			}
			out[p] = read(t, p)
			return nil
		})
		must(t, err)
	}
	return out
}

// TestMetricsExist: no document names a metric that no code describes.
func TestMetricsExist(t *testing.T) {
	known := map[string]bool{
		// The client library describes the metrics of the heartbeat process.
		"holdfast_heartbeat_process_": true,
	}
	for _, m := range metrics(t) {
		known[m.name] = true
	}
	if len(known) < 40 {
		t.Fatalf("the code describes %d metrics: is the pattern right?", len(known))
	}
	for p, text := range documents(t) {
		for _, name := range regexp.MustCompile(`\bholdfast_[a-z0-9_]+`).FindAllString(text, -1) {
			if !known[name] {
				t.Errorf("%s names the metric %s, which no code describes", p, name)
			}
		}
	}
}

// TestTestsExist: no document names a test that is not there. A name with … stands for all that begin so.
func TestTestsExist(t *testing.T) {
	var all strings.Builder
	err := filepath.WalkDir("../..", func(p string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(p, "_test.go") {
			all.WriteString(read(t, p))
		}
		return err
	})
	must(t, err)
	for p, text := range documents(t) {
		for _, named := range regexp.MustCompile("`((Test|Fuzz)\\w*)(…?)`").FindAllStringSubmatch(text, -1) {
			name := named[1]
			if named[3] == "" {
				name += "("
			}
			if !strings.Contains(all.String(), "\nfunc "+name) {
				t.Errorf("%s names the test %s, which is not there", p, named[0])
			}
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
