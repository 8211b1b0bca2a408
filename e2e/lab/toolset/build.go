package toolset

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// requiredVersion finds the version that a go.mod requires of the module.
func requiredVersion(gomod []byte, module string) (string, error) {
	for line := range bytes.Lines(gomod) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(string(line)), "require "))
		if len(fields) >= 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("find version of %s: not required", module)
}

// flags returns the arguments of go build that decide what comes out.
func (t Set) flags(version string) []string {
	ld := "-s -w"
	if t.stamp != nil {
		for _, x := range t.stamp(version) {
			ld += " -X " + x
		}
	}
	return []string{"-trimpath", "-tags", t.tags, "-ldflags", ld}
}

// dir returns where the set's programs are kept: a directory named by all that
// decides their content.
func (t Set) dir(cache, source string) (string, []string, error) {
	source = filepath.Join(source, t.Name)
	gomod, err := os.ReadFile(filepath.Join(source, "go.mod"))
	if err != nil {
		return "", nil, fmt.Errorf("read tools: %w", err)
	}
	version, err := requiredVersion(gomod, t.module)
	if err != nil {
		return "", nil, err
	}
	files := []string{"go.mod", "go.sum"}
	err = fs.WalkDir(os.DirFS(source), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".go" {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		return "", nil, fmt.Errorf("read tools: %w", err)
	}
	h := sha256.New()
	for _, name := range files {
		b, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return "", nil, fmt.Errorf("read tools: %w", err)
		}
		h.Write(b)
	}
	flags := t.flags(version)
	fmt.Fprintf(h, "%s %v %v", t.Name, t.cgo, flags)
	return filepath.Join(cache, t.Name+"-"+hex.EncodeToString(h.Sum(nil))[:16]), flags, nil
}

// A Builder compiles.
type Builder struct {
	// Repo is the source tree.
	Repo string
	// Cgroup is where compilers run; empty means the caller's.
	Cgroup string
	// Progress gets a line for each program.
	Progress io.Writer
}

// Build makes sure that all programs are there and returns their directories by set.
func (b Builder) Build(ctx context.Context, sets []Set) (map[string]string, error) {
	userCache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find cache: %w", err)
	}
	cache, source := filepath.Join(userCache, "holdfast-lab"), filepath.Join(b.Repo, "e2e", "lab", "tools")
	b.Progress = &lineWriter{w: b.Progress}
	dirs := make(map[string]string)
	group, ctx := errgroup.WithContext(ctx)
	// Linking uses one core, compiling all: two sets at a time keep them busy.
	group.SetLimit(2)
	for _, t := range sets {
		dir, flags, err := t.dir(cache, source)
		if err != nil {
			return nil, err
		}
		dirs[t.Name] = dir
		if _, err := os.Stat(dir); err == nil {
			continue
		}
		group.Go(func() error { return b.build(ctx, t, filepath.Join(source, t.Name), dir, flags) })
	}
	return dirs, group.Wait()
}

// build compiles into a directory beside, so that dir is complete or not there.
func (b Builder) build(ctx context.Context, t Set, source, dir string, flags []string) error {
	unlock, err := lock(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return nil // another process has compiled it
	}
	partial := dir + ".partial"
	if err := os.MkdirAll(partial, 0o755); err != nil {
		return err
	}
	for _, program := range slices.Sorted(maps.Keys(t.Programs)) {
		start := time.Now()
		fmt.Fprintf(b.Progress, "compiling %s\n", program)
		args := append([]string{"-o", filepath.Join(partial, program)}, flags...)
		if err := b.Compile(ctx, source, dir+".tmp", t.cgo, append(args, t.Programs[program])...); err != nil {
			return fmt.Errorf("compile %s: %w", program, err)
		}
		fmt.Fprintf(b.Progress, "compiled  %s in %.1fs\n", program, time.Since(start).Seconds())
	}
	return os.Rename(partial, dir)
}

// lock keeps other processes from compiling the same set. Its name is the name of an abstract socket, which
// the kernel frees when its holder ends, in whatever way.
func lock(ctx context.Context, dir string) (unlock func() error, err error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		l, err := net.Listen("unix", "@"+filepath.Base(dir))
		if err == nil {
			return l.Close, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

// lineWriter lets several builds report without mixing their lines.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lineWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
