package lab

import (
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

// programs that come from the distribution, and their Debian packages.
var programs = map[string]string{
	"/usr/lib/frr/bgpd": "frr",
	"bird":              "bird2",
	"nft":               "nftables",
	"iptables":          "iptables",
	"conntrack":         "conntrack",
	"ip":                "iproute2",
	"nsenter":           "util-linux",
	"tcpdump":           "tcpdump",
	"ethtool":           "ethtool",
	"ping":              "iputils-ping",
	"socat":             "socat",
	"curl":              "curl",
	"cc":                "gcc",
	"pkg-config":        "pkg-config",
	// gcc only recommends the C library's headers; runc and the race detector need them.
	"/usr/include/stdio.h": "libc6-dev",
	// The header that runc's seccomp support is compiled against.
	"/usr/include/seccomp.h": "libseccomp-dev",
}

// policyFile keeps a package's maintainer scripts from starting its daemons:
// routers belong into the lab, not on the machine.
const policyFile = "/usr/sbin/policy-rc.d"

// missingPackages lists the packages whose programs are not there.
func missingPackages() []string {
	var missing []string
	for program, pkg := range programs {
		var err error
		if program[0] == '/' {
			_, err = os.Stat(program)
		} else {
			_, err = exec.LookPath(program)
		}
		if err != nil && !slices.Contains(missing, pkg) {
			missing = append(missing, pkg)
		}
	}
	slices.Sort(missing)
	return missing
}

// Install installs the distribution's packages that Up needs, if any is
// missing, without starting the daemons in them.
func Install(ctx context.Context, progress io.Writer) (err error) {
	missing := missingPackages()
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
	if _, err := output(ctx, "", "apt-get", "update", "-qq"); err != nil {
		return fmt.Errorf("update package lists: %w", err)
	}
	args := append([]string{"DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-qq", "--no-install-recommends"}, missing...)
	if _, err := output(ctx, "", "env", args...); err != nil {
		return fmt.Errorf("install packages %v: %w", missing, err)
	}
	fmt.Fprintf(progress, "installed packages in %s\n", seconds(time.Since(start)))
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

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
