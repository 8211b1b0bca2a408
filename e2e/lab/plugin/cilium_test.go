package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The shell of Cilium's init containers finds everything that it needs in the image alone.
func TestWithLibraries(t *testing.T) {
	files, err := withLibraries(ciliumShell)
	if err != nil {
		t.Fatal(err)
	}
	hasLoader := false
	for path, source := range files {
		info, err := os.Stat(source)
		if err != nil || !info.Mode().IsRegular() || !filepath.IsAbs(path) {
			t.Errorf("%s is %s: %v", path, source, err)
		}
		hasLoader = hasLoader || strings.HasPrefix(filepath.Base(path), "ld-")
	}
	if !hasLoader {
		t.Errorf("no dynamic loader in %v", files)
	}
	for _, program := range ciliumShell {
		if files["/bin/"+program] == "" {
			t.Errorf("no %s", program)
		}
	}
	if _, err := withLibraries([]string{"no-such-program"}); err == nil {
		t.Error("a program that is not there: no error")
	}
}

// The values of both roles differ in nothing but who serves.
func TestCiliumValues(t *testing.T) {
	for _, replaces := range []bool{false, true} {
		text, err := render("cilium.yaml", map[string]any{
			"Image": "lab/x:v1", "Server": "192.0.2.1", "ReplacesKubeProxy": replaces,
		})
		if err != nil {
			t.Fatal(err)
		}
		want := map[bool]string{false: "kubeProxyReplacement: false\n", true: "kubeProxyReplacement: true\n"}[replaces]
		if !strings.Contains(string(text), want) || !strings.Contains(string(text), "k8sServiceHost: 192.0.2.1\n") {
			t.Errorf("values with replacement %v:\n%s", replaces, text)
		}
	}
}
