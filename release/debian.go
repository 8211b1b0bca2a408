package main

import (
	"context"
	"crypto/sha256"
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

// imageFiles matches the files of the packages that the image has: HAProxy, the loader, libraries by their names in
// programs, and licences, to which the copyright files refer.
var imageFiles = regexp.MustCompile(`^/usr/(sbin/haproxy|lib(64)?/ld-linux-[^/]+|lib/[^/]+/[^/]+\.so\.\d+|` +
	`share/doc/[^/]+/copyright|share/common-licenses/[^/]+)$`)

// pinFile has a line for each package: its architecture, name, version, URL and SHA-256.
var pinFile = filepath.Join("release", "haproxy.lock")

// pin is a package of pinFile.
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

		p := pin{
			architecture: f[0],
			name:         f[1],
			version:      f[2],
			url:          f[3],
			sum:          f[4],
		}
		out[p.architecture] = append(out[p.architecture], p)
	}

	return out, nil
}

// fetch returns the file of a package, which it downloads once. The pinned sum makes a connection without TLS safe:
// mirrors of Debian have no TLS.
func fetch(ctx context.Context, cache string, p pin) (file string, err error) {
	file = filepath.Join(cache, p.sum+".deb")
	cached, err := os.ReadFile(file)
	if err == nil && sumOf(cached) == p.sum {
		return file, nil
	}

	err = store(ctx, p, file)
	if err != nil {
		return "", fmt.Errorf(
			"get the package %s %s for %s, as %s has it: %w; run make haproxy-pins, and commit the result",
			p.name,
			p.version,
			p.architecture,
			pinFile,
			err,
		)
	}

	return file, nil
}

// store downloads a package into a file.
func store(ctx context.Context, p pin, file string) error {
	text, err := download(ctx, p)
	if err != nil {
		return err
	}

	err = os.MkdirAll(filepath.Dir(file), 0o755)
	if err != nil {
		return err
	}

	partial := file + ".partial"
	err = os.WriteFile(partial, text, 0o644)
	if err != nil {
		return err
	}

	return os.Rename(partial, file)
}

// download downloads a package and checks its sum.
func download(ctx context.Context, p pin) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return nil, err
	}

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()

	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}

	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", p.url, response.Status)
	}

	sum := sumOf(text)
	if sum != p.sum {
		return nil, fmt.Errorf("%s has the SHA-256 %s", p.url, sum)
	}

	return text, nil
}

// sumOf returns the SHA-256 of a content in hexadecimal.
func sumOf(content []byte) string {
	return fmt.Sprintf("%x", sha256.Sum256(content))
}

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

		_, err = output(ctx, "dpkg-deb", "--extract", file, dir)
		if err != nil {
			return nil, err
		}
	}

	return filesOf(dir)
}

// filesOf returns the files of the extracted packages for the image, by path in the image.
func filesOf(dir string) (map[string]string, error) {
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(file string, _ fs.DirEntry, err error) error {
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
	return out, err
}
