package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// The image of the proxies has HAProxy from packages of Debian's stable release, which has the LTS branch of its time
// and fixes its faults.
const debianRelease = "trixie"

// imageFiles are what the image has of them: HAProxy, the loader, libraries by the names that programs know, and
// licences, to which the copyright files refer.
var imageFiles = regexp.MustCompile(`^/usr/(sbin/haproxy|lib(64)?/ld-linux-[^/]+|lib/[^/]+/[^/]+\.so\.\d+|` +
	`share/doc/[^/]+/copyright|share/common-licenses/[^/]+)$`)

// pinFile has the packages: for each its architecture, name, version, URL and SHA-256.
var pinFile = filepath.Join("release", "haproxy.lock")

type pin struct{ architecture, name, version, url, sum string }

// readPins returns the packages in a file, by architecture.
func readPins(file string) (map[string][]pin, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	out := map[string][]pin{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if len(f) != 5 {
			return nil, fmt.Errorf("%s: cannot read %q", file, line)
		}
		out[f[0]] = append(out[f[0]], pin{f[0], f[1], f[2], f[3], f[4]})
	}
	return out, nil
}

// fetch returns the file of a package, which it downloads once. The pinned sum makes a plain connection safe, which is
// what apt uses and mirrors serve.
func fetch(ctx context.Context, cache string, p pin) (file string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf(
				"get the package %s %s for %s, as %s has it: %w; run make haproxy-pins, and commit the result",
				p.name,
				p.version,
				p.architecture,
				pinFile,
				err,
			)
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
	switch sum := sumOf(text); {
	case err != nil:
		return "", err
	case answer.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%s: %s", p.url, answer.Status)
	case sum != p.sum:
		return "", fmt.Errorf("%s has the SHA-256 %s", p.url, sum)
	}
	partial := file + ".partial"
	return file, errors.Join(os.MkdirAll(cache, 0o755), os.WriteFile(partial, text, 0o644), os.Rename(partial, file))
}

func sumOf(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }

// haproxyFiles returns the files of HAProxy for the image of an architecture, by path in the image.
func haproxyFiles(ctx context.Context, pins []pin, dir string) (map[string]string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	for _, p := range pins {
		file, err := fetch(ctx, filepath.Join(cache, "holdfast-debian"), p)
		if err != nil {
			return nil, err
		}
		if _, err := output(ctx, "dpkg-deb", "--extract", file, dir); err != nil {
			return nil, err
		}
	}
	out := map[string]string{}
	return out, filepath.WalkDir(dir, func(file string, _ fs.DirEntry, err error) error {
		name := strings.TrimPrefix(file, dir)
		if err != nil || !imageFiles.MatchString(name) {
			return err
		}
		if strings.Contains(name, "/ld-linux-") {
			name = strings.TrimPrefix(name, "/usr") // Debian has /lib and /lib64 below /usr
		}
		out[name], err = filepath.EvalSymlinks(file)
		return err
	})
}
