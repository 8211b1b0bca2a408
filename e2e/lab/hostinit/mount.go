package hostinit

import (
	"bufio"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// furnish makes the host's view of the file system.
func furnish(s *Spec) error {
	if err := unix.Sethostname([]byte(s.Hostname)); err != nil {
		return fmt.Errorf("set hostname: %w", err)
	}
	// Private first, so that nothing reaches the machine; then a peer group of
	// our own, for kubelet and containerd want shared mounts.
	for _, flag := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|flag, ""); err != nil {
			return fmt.Errorf("set propagation of /: %w", err)
		}
	}
	if err := dropNetnsMounts(); err != nil {
		return err
	}
	// Sources are opened before anything covers them.
	sources, err := openSources(s)
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range sources {
			_ = f.Close()
		}
	}()
	for _, dir := range s.Overlays {
		if err := mountOverlay(s.Dir, dir); err != nil {
			return err
		}
	}
	if err := mountKernel(); err != nil {
		return err
	}
	for i, b := range allBinds(s) {
		if err := bind(sources[i], b.Target); err != nil {
			return err
		}
	}
	return populate(s)
}

// allBinds puts the host's own directory before what is mounted into it.
func allBinds(s *Spec) []Bind {
	return slices.Concat([]Bind{{Source: s.Dir, Target: PrivateDir}}, s.Binds)
}

// dropNetnsMounts lets go of the machine's named network namespaces: a copy of
// such a mount would keep the namespace of a powered-off host alive.
func dropNetnsMounts() error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	var targets []string
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if fields := strings.Fields(sc.Text()); len(fields) > 4 && strings.HasPrefix(fields[4], "/run/netns/") {
			targets = append(targets, fields[4])
		}
	}
	for _, t := range targets {
		// Another host's may have gone meanwhile.
		_ = unix.Unmount(t, unix.MNT_DETACH)
	}
	return sc.Err()
}

func openSources(s *Spec) ([]*os.File, error) {
	var files []*os.File
	for _, b := range allBinds(s) {
		path := b.Source
		if !filepath.IsAbs(path) {
			path = filepath.Join(s.Dir, path)
			if _, err := os.Stat(path); os.IsNotExist(err) {
				if err := os.MkdirAll(path, 0o755); err != nil {
					return nil, err
				}
			}
		}
		f, err := os.OpenFile(path, unix.O_PATH, 0)
		if err != nil {
			return nil, fmt.Errorf("open mount source: %w", err)
		}
		files = append(files, f)
	}
	return files, nil
}

func mountOverlay(own, dir string) error {
	base := filepath.Join(own, "overlay", dir)
	upper, work := filepath.Join(base, "upper"), filepath.Join(base, "work")
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir, upper, work)
	if err := unix.Mount("overlay", dir, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount overlay on %s: %w", dir, err)
	}
	return nil
}

// mountKernel mounts the file systems that show a namespace: old ones would
// show the machine's processes, links and cgroups.
func mountKernel() error {
	for _, m := range []struct{ fstype, target, data string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"cgroup2", "/sys/fs/cgroup", ""},
		{"bpf", "/sys/fs/bpf", ""},
		{"tmpfs", "/run", "mode=755"},
	} {
		if err := unix.Mount(m.fstype, m.target, m.fstype, 0, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.fstype, m.target, err)
		}
	}
	return nil
}

func bind(source *os.File, target string) error {
	from := fmt.Sprintf("/proc/self/fd/%d", source.Fd())
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if _, err := os.Stat(target); os.IsNotExist(err) {
		if info.IsDir() {
			err = os.MkdirAll(target, 0o755)
		} else {
			err = os.WriteFile(target, nil, 0o644)
		}
		if err != nil {
			return fmt.Errorf("create mount point: %w", err)
		}
	}
	if err := unix.Mount(from, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s over %s: %w", source.Name(), target, err)
	}
	return nil
}

func populate(s *Spec) error {
	for _, d := range s.Dirs {
		if err := os.MkdirAll(d.Path, 0o755); err != nil {
			return err
		}
	}
	for path, content := range s.Files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		// What is there may be a link into the /run that we have just covered.
		if err := os.RemoveAll(path); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	for _, d := range s.Dirs {
		if d.Owner == "" {
			continue
		}
		if err := chown(d.Path, d.Owner); err != nil {
			return fmt.Errorf("hand %s to %s: %w", d.Path, d.Owner, err)
		}
	}
	return nil
}

func chown(root, owner string) error {
	u, err := user.Lookup(owner)
	if err != nil {
		return err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, gid)
	})
}
