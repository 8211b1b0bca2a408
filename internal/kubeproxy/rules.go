package kubeproxy

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// Where kube-proxy's rules are. In mode nftables kube-proxy makes its table and the rules in one
// transaction. In modes iptables and IPVS (visible if iptables uses nf_tables) it makes its first
// chains before their rules, and iptablesChain together with them.
const (
	nftablesTable = "kube-proxy"
	iptablesTable = "nat"
	iptablesChain = "KUBE-MARK-MASQ"
)

// markerTable is an empty table that records that kube-proxy has served. It survives restarts of the speaker, but not of
// the node.
const markerTable = "holdfast-booted"

func marker() nft.Table { return nft.Table{Family: unix.NFPROTO_INET, Name: markerTable} }

// look returns the strongest sign of kube-proxy, whose health endpoint is at livez.
func look(ctx context.Context, livez string) sign {
	if seen := rules(); seen >= oneFamily {
		return seen
	}
	return askLivez(ctx, livez)
}

// rules returns the strongest sign in the kernel, silent without any. It takes an unreadable table for a missing one.
func rules() sign {
	if exists(marker()) {
		return servedBefore
	}
	all := families()
	found := 0
	for _, f := range all {
		if exists(nft.Table{Family: f, Name: nftablesTable}) || (nft.Table{Family: f, Name: iptablesTable}).HasChain(iptablesChain) {
			found++
		}
	}
	switch found {
	case 0:
		return silent
	case len(all):
		return allFamilies
	}
	return oneFamily
}

func exists(t nft.Table) bool {
	_, err := t.Handle()
	return err == nil
}

// families returns the families that kube-proxy makes rules for: all that the node's kernel has enabled, whatever the
// families of the cluster.
func families() []byte {
	out := []byte{unix.NFPROTO_IPV4}
	_, err := os.Stat("/proc/net/if_inet6")
	off, _ := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	if err == nil && strings.TrimSpace(string(off)) != "1" {
		out = append(out, unix.NFPROTO_IPV6)
	}
	return out
}

// mark records that kube-proxy has served since the node started.
func mark() error {
	b := marker().Batch()
	b.Create()
	if err := b.Commit(); err != nil {
		return fmt.Errorf("add table %s: %w", markerTable, err)
	}
	return nil
}

// Forget deletes the record that kube-proxy has served, so that an uninstalled speaker leaves nothing behind.
func Forget() error {
	if err := marker().Delete(); err != nil {
		return fmt.Errorf("delete table %s: %w", markerTable, err)
	}
	return nil
}
