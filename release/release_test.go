package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestName(t *testing.T) {
	commit := source{
		commit: "8fd0094aef0000000000000000000000000000ff", date: time.Date(2026, 11, 23, 23, 59, 0, 0, time.UTC),
	}
	for _, tt := range []struct {
		tags     string
		modified bool
		want     string // none is an error
	}{
		{"", false, "0.0.0-20261123-8fd0094"},
		{"", true, "0.0.0-20261123-8fd0094-modified"},
		{"v1.2.3", false, "1.2.3"},
		{"v1.2.3", true, "0.0.0-20261123-8fd0094-modified"},
		{"v1.2.3-rc.1", false, "1.2.3-rc.1"},
		{"api/v1beta1/v1.2.3 v1.2.3 tested", false, "1.2.3"},
		{"v1.2 v01.2.3 v1.2.3+meta 1.2.3", false, "0.0.0-20261123-8fd0094"},
		{"v1.2.3 v1.2.4", false, ""},
	} {
		s := commit
		s.modified = tt.modified
		got, err := s.name(strings.Fields(tt.tags))
		if got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("tags %q, modified %v: %q, %v, want %q", tt.tags, tt.modified, got, err, tt.want)
		}
	}
}

func TestReleased(t *testing.T) {
	const changelog = "# Changelog\n\n## 0.3.0 (not released)\n\n## 0.2.0 (2026-11-23)\n\ntext about 0.1.1\n\n## 0.1.0\n"
	for version, want := range map[string]bool{
		"0.0.0-20261123-8fd0094": true, "0.1.0": true, "0.2.0": true, "0.3.0": false, "0.1.1": false, "0.2": false,
		"0x2.0": false,
	} {
		if err := released(changelog, version); (err == nil) != want {
			t.Errorf("%s: %v", version, err)
		}
	}
}

func TestModule(t *testing.T) {
	r := release{source: source{version: "1.2.3"}}
	for _, tt := range []struct {
		m    debug.Module
		want string
	}{
		{debug.Module{Path: "example.org/a", Version: "v1.0.0", Sum: "h1:x"}, "pkg:golang/example.org/a@v1.0.0"},
		{debug.Module{Path: "example.org/a", Version: "v2.0.0+incompatible"},
			"pkg:golang/example.org/a@v2.0.0%2Bincompatible"},
		{debug.Module{Path: "example.org/a", Version: "v1.0.0",
			Replace: &debug.Module{Path: "example.org/b", Version: "v1.1.0"}}, "pkg:golang/example.org/b@v1.1.0"},
		{debug.Module{Path: module + "/api/v1beta1", Version: "v0.0.0",
			Replace: &debug.Module{Path: "./api/v1beta1"}}, "pkg:golang/" + module +
			"/api/v1beta1@v1.2.3"},
	} {
		if got := r.module(&tt.m).PackageURL; got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.m, got, tt.want)
		}
	}
}

// TestPins: each architecture has HAProxy pinned, and a pin that is gone, or whose package is another one, is named
// with what to do.
func TestPins(t *testing.T) {
	pins, err := readPins("haproxy.lock")
	must(t, err)
	for _, a := range []string{"amd64", "arm64"} {
		if !slices.ContainsFunc(pins[a], func(p pin) bool {
			return p.name == "haproxy" && strings.HasPrefix(p.version, "3.0.")
		}) {
			t.Errorf("%s: %v", a, pins[a])
		}
	}
	half := filepath.Join(t.TempDir(), "half")
	must(t, os.WriteFile(half, []byte("amd64 haproxy 3.0"), 0o600))
	if _, err := readPins(half); err == nil {
		t.Error("no error for half a line")
	}
	r := release{architectures: []string{"amd64", "arm"}, pins: pins}
	if daemons, proxies := r.platforms(daemons), r.platforms(proxies); !slices.Equal(daemons, r.architectures) ||
		!slices.Equal(proxies, r.architectures[:1]) {
		t.Errorf("images for %v and %v, of %v", daemons, proxies, r.architectures)
	}
	r.architectures = []string{"arm"}
	if err := r.pack(t.Context(), proxies); err == nil || !strings.Contains(err.Error(), "arm") {
		t.Errorf("an image without HAProxy: %v", err)
	}
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; r.URL.Path != "/there" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte("package"))
	}))
	defer server.Close()
	cache := t.TempDir()
	good := pin{"amd64", "haproxy", "3.0", server.URL + "/there", sumOf([]byte("package"))}
	for range 2 {
		file, err := fetch(t.Context(), cache, good)
		must(t, err)
		if text, err := os.ReadFile(file); err != nil || string(text) != "package" || asked != 1 {
			t.Errorf("%q, %v, after %d downloads", text, err, asked)
		}
	}
	gone, other := good, good
	gone.url, gone.sum = server.URL+"/gone", sumOf([]byte("gone"))
	other.sum = sumOf([]byte("other"))
	for _, p := range []pin{gone, other} {
		_, err := fetch(t.Context(), cache, p)
		if err == nil || !strings.Contains(err.Error(), "haproxy 3.0 for amd64") ||
			!strings.Contains(err.Error(), "run make haproxy-pins") {
			t.Errorf("%s: %v", p.url, err)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
