package house

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestActionsArePinned: a workflow names each action of others by its commit, since a tag can be moved, and the version
// beside it.
func TestActionsArePinned(t *testing.T) {
	files, err := filepath.Glob("../../.github/workflows/*.yml")
	must(t, err)
	uses := regexp.MustCompile(`(?m)^ *(?:- )?uses: (.*)$`)
	pinned := regexp.MustCompile(`^[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	commits := map[string]string{}
	for _, file := range files {
		for _, m := range uses.FindAllStringSubmatch(read(t, file), -1) {
			if strings.HasPrefix(m[1], "./") {
				continue
			}
			if !pinned.MatchString(m[1]) {
				t.Errorf("%s: %s: want a commit and, in a comment, its version", file, m[1])
			}
			action, commit, _ := strings.Cut(m[1], "@")
			if other := commits[action]; other != "" && other != commit {
				t.Errorf("%s at %s and at %s", action, commit, other)
			}
			commits[action] = commit
		}
	}
	if len(commits) < 3 {
		t.Errorf("found %d actions", len(commits))
	}
}

// keptByHand are the modules whose versions a person chooses: the oldest Kubernetes, Calico, which has no releases, and
// types that stand in for others.
var keptByHand = []string{
	"/e2e/lab/tools/calico", "/e2e/lab/tools/cilium/mcs", "/e2e/lab/tools/flannel/vpc",
	"/e2e/lab/tools/kubernetes131", "/e2e/lab/tools/kubernetes131/dra", "/e2e/lab/tools/metallb/frrk8s",
}

// TestModulesAreUpdated: Dependabot knows each Go module of the repository.
func TestModulesAreUpdated(t *testing.T) {
	var config struct {
		Updates []struct {
			Ecosystem   string `json:"package-ecosystem"`
			Directories []string
		}
	}
	must(t, yaml.Unmarshal([]byte(read(t, "../../.github/dependabot.yml")), &config))
	known := slices.Clone(keptByHand)
	for _, u := range config.Updates {
		if u.Ecosystem == "gomod" {
			known = append(known, u.Directories...)
		}
	}
	var modules []string
	root := os.DirFS("../..")
	for _, pattern := range []string{"go.mod", "*/*/go.mod", "*/*/*/go.mod", "*/*/*/*/go.mod", "*/*/*/*/*/go.mod"} {
		found, err := fs.Glob(root, pattern)
		must(t, err)
		for _, file := range found {
			modules = append(modules, filepath.Join("/", filepath.Dir(file)))
		}
	}
	slices.Sort(modules)
	slices.Sort(known)
	if !slices.Equal(modules, known) {
		t.Errorf("the modules are %v, and Dependabot and keptByHand know %v", modules, known)
	}
}
