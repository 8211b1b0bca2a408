package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ulikunitz/xz"
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

func (p pin) line() string {
	return strings.Join([]string{p.architecture, p.name, p.version, p.url, p.sum}, " ")
}

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

// unpack writes the files of a package below dir, and returns their paths. A package is an archive of ar(5) with its files in data.tar (deb(5)).
func unpack(file, dir string) ([]string, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	if _, err := r.Discard(len("!<arch>\n")); err != nil {
		return nil, err
	}
	for {
		head := make([]byte, 60) // name, time, owner, group, mode, size, and an end of two bytes
		if _, err := io.ReadFull(r, head); err != nil {
			return nil, fmt.Errorf("find data.tar.xz in %s: %w", file, err)
		}
		size, err := strconv.ParseInt(strings.TrimSpace(string(head[48:58])), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		if strings.TrimRight(string(head[:16]), " /") == "data.tar.xz" {
			data, err := xz.NewReader(io.LimitReader(r, size))
			if err != nil {
				return nil, fmt.Errorf("read %s: %w", file, err)
			}
			return untar(data, dir)
		}
		if _, err := io.CopyN(io.Discard, r, size+size%2); err != nil { // at even places
			return nil, err
		}
	}
}

// untar writes files and links below dir, and returns their paths.
func untar(data io.Reader, dir string) (paths []string, err error) {
	for r := tar.NewReader(data); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return paths, nil
		}
		if err != nil {
			return nil, err
		}
		name := path.Clean(h.Name)
		to := filepath.Join(dir, filepath.FromSlash(name))
		if !filepath.IsLocal(name) || h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeSymlink {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return nil, err
		}
		paths = append(paths, name)
		if h.Typeflag == tar.TypeSymlink {
			if err := os.Symlink(h.Linkname, to); err != nil {
				return nil, err
			}
			continue
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(to, content, fs.FileMode(h.Mode).Perm()); err != nil {
			return nil, err
		}
	}
}

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
				return nil, fmt.Errorf("HAProxy needs the library %s, which is at %v: %w", l, where, err)
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
	cache, err := packageCache()
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range pins {
		file, err := fetch(ctx, cache, p)
		if err != nil {
			return nil, err
		}
		if _, err := unpack(file, dir); err != nil {
			return nil, err
		}
		names = append(names, p.name)
	}
	out, err := runs(dir)
	if err != nil {
		return nil, err
	}
	licences, err := texts(dir, names)
	for name, file := range licences {
		out[name] = file
	}
	return out, err
}

func packageCache() (string, error) {
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "holdfast-debian"), err
}

// renew writes the pins again: apt resolves what HAProxy depends on and checks the signatures of the release, and what HAProxy does not need to
// run is left out.
func (r release) renew(ctx context.Context) error {
	lock := "# Packages of the proxies' image. Written by make haproxy-pins.\n"
	for _, a := range r.sorted() {
		pins, err := resolve(ctx, a)
		if err != nil {
			return err
		}
		for _, p := range pins {
			lock += p.line() + "\n"
		}
	}
	return os.WriteFile(pinFile, []byte(lock), 0o644)
}

const sourcesList = `Types: deb
URIs: http://deb.debian.org/debian
Suites: RELEASE RELEASE-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: RELEASE-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
`

// resolve returns the packages that the image needs: those with a file that HAProxy runs with, or a licence of these.
func resolve(ctx context.Context, architecture string) (pins []pin, err error) {
	dir, err := os.MkdirTemp("", "debian-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	packages, owner, err := download(ctx, architecture, dir)
	if err != nil {
		return nil, err
	}
	root, needed := filepath.Join(dir, "root"), map[string]bool{}
	need := func(files map[string]string) {
		for _, file := range files {
			needed[owner[strings.TrimPrefix(file, root+"/")]] = true
		}
	}
	files, err := runs(root)
	if err != nil {
		return nil, err
	}
	need(files)
	licences, err := texts(root, slices.Collect(maps.Keys(needed)))
	if err != nil {
		return nil, err
	}
	need(licences)
	for name := range needed {
		pins = append(pins, packages[name])
	}
	slices.SortFunc(pins, func(a, b pin) int { return cmp.Compare(a.name, b.name) })
	return pins, nil
}

// download unpacks HAProxy and what it depends on below root in dir. It returns the packages by name, and the package of each file.
func download(ctx context.Context, architecture, dir string) (packages map[string]pin, owner map[string]string, err error) {
	for _, d := range []string{"lists/partial", "cache/archives/partial", "root"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, nil, err
		}
	}
	sources := strings.ReplaceAll(sourcesList, "RELEASE", debianRelease)
	err = errors.Join(os.WriteFile(filepath.Join(dir, "debian.sources"), []byte(sources), 0o644), os.WriteFile(filepath.Join(dir, "status"), nil, 0o644))
	if err != nil {
		return nil, nil, err
	}
	apt := func(args ...string) (string, error) {
		options := []string{"apt-get", "-qq", "-o", "Dir::State=" + dir, "-o", "Dir::State::status=" + dir + "/status", "-o", "Dir::Cache=" + dir + "/cache",
			"-o", "Dir::Etc::sourcelist=" + dir + "/debian.sources", "-o", "Dir::Etc::sourceparts=/dev/null", "-o", "APT::Architecture=" + architecture,
			"-o", "APT::Architectures=" + architecture, "-o", "APT::Install-Recommends=false", "-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=1"}
		return output(ctx, append(options, args...)...)
	}
	if _, err := apt("update"); err != nil {
		return nil, nil, err
	}
	install := []string{"--yes", "install", "haproxy", "base-files"}
	list, err := apt(append([]string{"--print-uris"}, install...)...)
	if err != nil {
		return nil, nil, err
	}
	if _, err := apt(append([]string{"--download-only"}, install...)...); err != nil {
		return nil, nil, err
	}
	packages, owner = map[string]pin{}, map[string]string{}
	for line := range strings.Lines(list) {
		p, file, err := printed(line)
		if err != nil {
			return nil, nil, err
		}
		file = filepath.Join(dir, "cache", "archives", file)
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, err
		}
		paths, err := unpack(file, filepath.Join(dir, "root"))
		if err != nil {
			return nil, nil, err
		}
		p.architecture, p.sum = architecture, sumOf(content)
		packages[p.name] = p
		for _, path := range paths {
			owner[path] = p.name
		}
	}
	return packages, owner, nil
}

// printed reads a line of --print-uris, 'URL' FILE SIZE SUM: the package without its sum, and the name of its file.
func printed(line string) (p pin, file string, err error) {
	f := strings.Fields(line)
	if len(f) < 3 || strings.Count(f[1], "_") != 2 {
		return pin{}, "", fmt.Errorf("apt prints %q", line)
	}
	parts := strings.Split(f[1], "_")
	version, err := url.PathUnescape(parts[1]) // FILE has no : as it is
	return pin{name: parts[0], version: version, url: strings.Trim(f[0], "'")}, f[1], err
}
