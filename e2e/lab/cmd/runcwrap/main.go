// Command runcwrap stands between containerd and runc on a machine whose
// cgroup2 hierarchy has no controllers: runc fails on limits that it cannot
// write, so they are taken out of the container's configuration. Pods with
// limits run, without limits.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "runcwrap:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch verb, rest := subcommand(args); verb {
	case "update":
		return nil
	case "create", "run":
		if err := stripFile(filepath.Join(bundle(rest), "config.json")); err != nil {
			return err
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	return syscall.Exec(runc, append([]string{"runc"}, args...), os.Environ())
}

func stripFile(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	out, err := strip(b)
	if err != nil {
		return fmt.Errorf("strip %s: %w", path, err)
	}
	return os.WriteFile(path, out, 0o600)
}
