package lab

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/debian"
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
	"promtool":          "prometheus",
	"haproxy":           "haproxy",
	"pkg-config":        "pkg-config",
	// gcc only recommends the C library's headers; runc and the race detector need them.
	"/usr/include/stdio.h": "libc6-dev",
	// The header that runc's seccomp support is compiled against.
	"/usr/include/seccomp.h": "libseccomp-dev",
}

// Install installs the distribution's packages that Up needs, if any is
// missing, without starting the daemons in them.
func Install(ctx context.Context, progress io.Writer) error {
	return debian.Install(ctx, programs, progress)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
