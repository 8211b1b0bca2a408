package kubeproxy

import (
	"context"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nft"
)

// Tables and chains of kube-proxy. In mode nftables it makes its table and the rules in one transaction. In modes
// iptables and IPVS (visible if iptables uses nf_tables) it makes its first chains and the jump to them before their
// rules, and iptablesChain together with the rules. A firewall tool that flushes rules may leave the chains.
const (
	nftablesTable, nftablesHook, nftablesServices = "kube-proxy", "nat-prerouting", "services"
	iptablesTable, iptablesHook, iptablesServices = "nat", "PREROUTING", "KUBE-SERVICES"
	iptablesChain                                 = "KUBE-MARK-MASQ"
)

// markerTable is an empty table that records that kube-proxy has served. It survives restarts of the speaker, but not
// of the node.
const markerTable = "holdfast-booted"

// marker returns the table that is the record.
func marker() nft.Table { return nft.Table{Family: unix.NFPROTO_INET, Name: markerTable} }

// findSign returns the strongest sign of kube-proxy. Its health endpoint is at livez.
func findSign(ctx context.Context, livez string) sign {
	inKernel := kernelSign()
	if inKernel >= oneFamily {
		return inKernel
	}
	return askLivez(ctx, livez)
}

// kernelSign returns the strongest sign in the kernel; silent if there is none. A table that cannot be read counts as
// missing.
func kernelSign() sign {
	if marker().Exists() {
		return servedBefore
	}

	switch found, _ := familiesWithRules(); len(found) {
	case 0:
		return silent
	case len(families()):
		return allFamilies
	}

	return oneFamily
}

// familiesWithRules returns the families for which the kernel has kube-proxy's rules and the jump to them.
func familiesWithRules() (found []lb.Family, err error) {
	for _, f := range families() {
		has, readErr := hasRules(f)
		if has {
			found = append(found, f)
		}
		err = errors.Join(err, readErr)
	}

	return found, err
}

// hasRules reports whether the kernel has kube-proxy's rules for a family, and the jump to them.
func hasRules(f lb.Family) (bool, error) {
	number := byte(unix.NFPROTO_IPV4)
	if f == lb.IPv6 {
		number = unix.NFPROTO_IPV6
	}

	own := nft.Table{Family: number, Name: nftablesTable}
	if _, err := own.Handle(); err == nil {
		// A table with an unknown layout counts: another version may have made it.
		if known, err := own.HasChain(nftablesHook); !known {
			return err == nil, err
		}

		if has, err := own.HasJump(nftablesHook, nftablesServices); has || err != nil {
			return has, err
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return false, err
	}

	shared := nft.Table{Family: number, Name: iptablesTable}
	if has, err := shared.HasChain(iptablesChain); !has {
		return false, err
	}

	return shared.HasJump(iptablesHook, iptablesServices)
}

// families returns the families for which kube-proxy makes rules: all that the kernel has enabled, even if the cluster
// uses only one.
func families() []lb.Family {
	out := []lb.Family{lb.IPv4}
	_, err := os.Stat("/proc/net/if_inet6")
	disabled, _ := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	if err == nil && strings.TrimSpace(string(disabled)) != "1" {
		out = append(out, lb.IPv6)
	}

	return out
}

// Forget deletes the record that kube-proxy has served, so that an uninstalled speaker leaves nothing behind.
func Forget() error { return marker().Delete() }
