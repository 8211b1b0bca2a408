//go:build e2e && migration

package e2e

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/e2e/lab/debian"
	"github.com/holdfast-lb/holdfast/e2e/lab/toolset"
	"github.com/holdfast-lb/holdfast/release/oci"
)

// frrImageName is the image of FRR-K8s and FRR: the chart's values may name one image for both.
const frrImageName = "quay.io/metallb/frr-k8s:lab"

// frrPackages are Debian's FRR, what FRR-K8s' scripts run, and the libraries of both.
var frrPackages = []string{
	"frr", "frr-pythontools", "tini", "bash", "coreutils", "sed", "grep", "util-linux", "procps",
	"python3-minimal", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib",
	"libacl1", "libattr1", "libaudit1", "libc6", "libcap-ng0", "libcap2", "libcrypt1", "libexpat1", "libgmp10",
	"libjson-c5", "libpam0g",
	"libpam-modules", "libpcre2-8-0", "libproc2-0", "libreadline8", "libselinux1", "libsmartcols1", "libsystemd0",
	"libtinfo6", "libyang2", "zlib1g",
}

// frrFiles are written as FRR's own image has them: the chart runs docker-start, and copies files as user 100 of group
// 101.
var frrFiles = map[string]string{
	"/usr/lib/frr/docker-start": "#!/bin/bash\nchown -R frr:frr /etc/frr\nsource /usr/lib/frr/frrcommon.sh\nexec " +
		"/usr/lib/frr/watchfrr $(daemon_list)\n",
	"/etc/passwd":    "root:x:0:0:root:/root:/bin/bash\nfrr:x:100:101:FRR:/:/usr/sbin/nologin\n",
	"/etc/pam.d/frr": "auth sufficient pam_permit.so\naccount sufficient pam_permit.so\n",
	"/etc/group":     "root:x:0:\nfrr:x:101:\nfrrvty:x:102:frr\n",
}

// frrImage makes the image of FRR-K8s, whose programs are compiled in dir, and of Debian's FRR.
func (m *migration) frrImage(t *testing.T, dir string) oci.Image {
	t.Helper()
	root := t.TempDir()
	must(t, debian.Unpack(t.Context(), root, frrPackages...))
	files := unpacked(t, root)
	reloader, err := os.ReadFile(filepath.Join(m.module(t, "frrk8s", "github.com/metallb/frr-k8s"), "cmd", "reloader",
		"frr-reloader.sh"))
	must(t, err)
	texts := maps.Clone(frrFiles)
	texts["/frr-reloader.sh"] = string(reloader) // files of a module cannot be executed
	for name, text := range texts {
		file := filepath.Join(t.TempDir(), "file")
		must(t, os.WriteFile(file, []byte(text), 0o755))
		files[name] = file
	}
	files["/bin/sh"], files["/sbin/tini"] = files["/bin/bash"], files["/usr/bin/tini"]
	for program := range toolset.FRRK8s.Programs {
		files["/"+program] = filepath.Join(dir, program)
	}
	return oci.Image{Name: frrImageName, Platforms: []oci.Platform{{Architecture: runtime.GOARCH, Files: files}}}
}

// unpacked returns the files below a directory, and what links lead to, by the path in an image, without documentation.
func unpacked(t *testing.T, root string) map[string]string {
	t.Helper()
	files := map[string]string{}
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, root)
		if err != nil || d.IsDir() || strings.HasPrefix(name, "/usr/share/") && !strings.HasPrefix(name, "/usr/share/yang/") {
			return err
		}
		target := path
		for range 5 { // some links lead to links
			link, err := os.Readlink(target)
			if err != nil {
				break
			}
			if filepath.IsAbs(link) {
				target = filepath.Join(root, link)
			} else {
				target = filepath.Join(filepath.Dir(target), link)
			}
		}
		if info, err := os.Stat(target); err == nil && info.Mode().IsRegular() {
			files[name] = target
		}
		return nil
	}))
	return files
}
