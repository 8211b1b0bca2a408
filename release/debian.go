package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// The image of the proxies has HAProxy from packages of Debian's stable release, which has the LTS branch of its time and fixes its faults.
const (
	debianRelease = "trixie"
	haproxy       = "/usr/sbin/haproxy"
	licenses      = "usr/share/common-licenses" // which the copyright files of packages refer to
)

// pinFile has the packages: for each its architecture, name, version, URL and SHA-256.
var pinFile = filepath.Join("release", "haproxy.lock")

// pin is a package of Debian.
type pin struct{ architecture, name, version, url, sum string }

// readPins returns the packages for an architecture.
func readPins(text, architecture string) (out []pin, err error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if len(f) != 5 {
			return nil, fmt.Errorf("%s: cannot read %q", pinFile, line)
		}
		if f[0] == architecture {
			out = append(out, pin{f[0], f[1], f[2], f[3], f[4]})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no packages for %s", pinFile, architecture)
	}
	return out, nil
}

// fetch returns the file of a package, which it downloads once. The pinned sum makes a plain connection safe, which is what apt uses and mirrors serve.
func fetch(ctx context.Context, cache string, p pin) (file string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("get the package %s %s for %s, as %s has it: %w; run make haproxy-pins, and commit the result",
				p.name, p.version, p.architecture, pinFile, err)
		}
	}()
	file = filepath.Join(cache, p.sum+".deb")
	if text, err := os.ReadFile(file); err == nil && sumOf(text) == p.sum {
		return file, nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return "", err
	}
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", p.url, answer.Status)
	}
	if sum := sumOf(text); sum != p.sum {
		return "", fmt.Errorf("%s has the SHA-256 %s", p.url, sum)
	}
	partial := file + ".partial"
	return file, errors.Join(os.MkdirAll(cache, 0o755), os.WriteFile(partial, text, 0o644), os.Rename(partial, file))
}

func sumOf(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }

// runs returns what HAProxy needs of the packages below dir to run, by path in the image: itself, the loader that it names, and the libraries
// that each needs.
func runs(dir string) (map[string]string, error) {
	out, todo := map[string]string{}, []string{haproxy}
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		if out[name] != "" {
			continue
		}
		// Debian has /lib and /lib64 below /usr.
		file, err := filepath.EvalSymlinks(filepath.Join(dir, "usr", strings.TrimPrefix(name, "/usr")))
		if err != nil {
			return nil, fmt.Errorf("HAProxy needs %s: %w", name, err)
		}
		out[name] = file
		program, err := elf.Open(file)
		if err != nil {
			return nil, err
		}
		if s := program.Section(".interp"); s != nil {
			loader, err := s.Data()
			if err != nil {
				return nil, err
			}
			todo = append(todo, string(bytes.TrimRight(loader, "\x00")))
		}
		libraries, err := program.ImportedLibraries()
		if err := errors.Join(err, program.Close()); err != nil {
			return nil, err
		}
		for _, l := range libraries {
			where, err := filepath.Glob(filepath.Join(dir, "usr/lib/*", l))
			if err != nil || len(where) != 1 {
				return nil, fmt.Errorf("HAProxy needs the library %s, which is at %v: %w; add its package to %s", l, where, err, pinFile)
			}
			todo = append(todo, "/"+strings.TrimPrefix(where[0], dir+"/"))
		}
	}
	return out, nil
}

// texts returns the licences of packages below dir, by path in the image.
func texts(dir string, names []string) (map[string]string, error) {
	out := map[string]string{}
	all := []string{}
	for _, n := range names {
		all = append(all, filepath.Join(dir, "usr/share/doc", n, "copyright"))
	}
	common, err := filepath.Glob(filepath.Join(dir, licenses, "*"))
	if err != nil {
		return nil, err
	}
	for _, name := range append(all, common...) {
		file, err := filepath.EvalSymlinks(name)
		if err != nil {
			return nil, err
		}
		out["/"+strings.TrimPrefix(name, dir+"/")] = file
	}
	return out, nil
}

// haproxyFiles returns the files of HAProxy for the image of an architecture, by path in the image.
func haproxyFiles(ctx context.Context, architecture, dir string) (map[string]string, error) {
	lock, err := os.ReadFile(pinFile)
	if err != nil {
		return nil, err
	}
	pins, err := readPins(string(lock), architecture)
	if err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range pins {
		file, err := fetch(ctx, filepath.Join(cache, "holdfast-debian"), p)
		if err != nil {
			return nil, err
		}
		if _, err := output(ctx, "dpkg-deb", "--extract", file, dir); err != nil {
			return nil, err
		}
		names = append(names, p.name)
	}
	out, err := runs(dir)
	if err != nil {
		return nil, err
	}
	licences, err := texts(dir, names)
	maps.Copy(out, licences)
	return out, err
}
