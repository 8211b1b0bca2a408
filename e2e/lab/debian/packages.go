// Package debian gets programs of the Debian distribution: it installs packages on the machine, unpacks
// them into a directory, and makes root file systems of them.
package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"time"
)

// policyFile keeps a package's maintainer scripts from starting its daemons:
// routers belong into the lab, not on the machine.
const policyFile = "/usr/sbin/policy-rc.d"

// missing lists the packages whose programs are not there.
func missing(programs map[string]string) []string {
	var out []string
	for program, pkg := range programs {
		var err error
		if program[0] == '/' {
			_, err = os.Stat(program)
		} else {
			_, err = exec.LookPath(program)
		}
		if err != nil && !slices.Contains(out, pkg) {
			out = append(out, pkg)
		}
	}
	slices.Sort(out)
	return out
}

// Install installs the packages of programs, by path or name, that are missing, without starting the
// daemons in them.
func Install(ctx context.Context, programs map[string]string, progress io.Writer) (err error) {
	missing := missing(programs)
	if len(missing) == 0 {
		return nil
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("install packages %v: must be root", missing)
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("install packages %v: no apt-get on this machine", missing)
	}
	start := time.Now()
	fmt.Fprintf(progress, "installing packages %v\n", missing)
	restore, err := holdDaemons()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, restore()) }()
	if _, err := run(ctx, "apt-get", "update", "-qq"); err != nil {
		return fmt.Errorf("update package lists: %w", err)
	}
	args := append(
		[]string{"DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-qq", "--no-install-recommends"},
		missing...)
	if _, err := run(ctx, "env", args...); err != nil {
		return fmt.Errorf("install packages %v: %w", missing, err)
	}
	fmt.Fprintf(progress, "installed packages in %s\n", time.Since(start).Round(100*time.Millisecond))
	return nil
}

// holdDaemons forbids the start of daemons until restore is called. It keeps a policy
// that exists.
func holdDaemons() (restore func() error, err error) {
	f, err := os.OpenFile(policyFile, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return func() error { return nil }, nil
	}
	if err != nil {
		return nil, err
	}
	_, err = f.WriteString("#!/bin/sh\nexit 101\n")
	return func() error { return os.Remove(policyFile) }, errors.Join(err, f.Close())
}

// run runs a program; what it prints on a failure becomes part of the error.
func run(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("run %s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return string(out), err
}
