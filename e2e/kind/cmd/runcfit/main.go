// Command runcfit stands between Docker and runc on a machine where root lacks capabilities: Docker gives a
// privileged container all that it knows, and runc fails on the first that it cannot give.
// They are taken out of the container's configuration, and so is the OOM score, which takes
// CAP_SYS_RESOURCE to lower.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "runcfit:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	missing, err := missingCapabilities(string(status))
	if err != nil {
		return err
	}
	if file, process := configured(args); file != "" && len(missing) > 0 {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if b, err = fit(b, process, missing); err != nil {
			return fmt.Errorf("fit %s: %w", file, err)
		}
		if err := os.WriteFile(file, b, 0o600); err != nil {
			return err
		}
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		return err
	}
	return syscall.Exec(runc, append([]string{"runc"}, args...), os.Environ())
}

// configured returns the file that configures what runc is to start: of a container, or of one more process in it.
func configured(args []string) (file string, process bool) {
	value := func(names ...string) string {
		for i, a := range args {
			for _, n := range names {
				if a == n && i+1 < len(args) {
					return args[i+1]
				}
				if v, ok := strings.CutPrefix(a, n+"="); ok {
					return v
				}
			}
		}
		return ""
	}
	for _, a := range args {
		switch a {
		case "create", "run":
			return filepath.Join(value("--bundle", "-b"), "config.json"), false
		case "exec":
			return value("--process", "-p"), true
		}
	}
	return "", false
}
