package kubeproxy

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/nft"
)

// Where kube-proxy's rules are. In mode nftables its table is made together with all that
// it holds. In modes iptables and IPVS (seen where iptables works by nf_tables) its first
// chains are made ahead of their rules; this one comes with them.
const (
	nftablesTable = "kube-proxy"
	iptablesTable = "nat"
	iptablesChain = "KUBE-MARK-MASQ"
)

// markerTable is empty. It is in the kernel for as long as the node runs, whatever becomes of speakers.
const markerTable = "holdfast-booted"

func marker() nft.Table { return nft.Table{Family: unix.NFPROTO_INET, Name: markerTable} }

// look returns the best sign that there is.
func look(ctx context.Context, l livez) sign {
	rules := rules()
	if rules < partly {
		return l.ask(ctx)
	}
	return rules
}

// rules returns what the kernel is a sign of: nobody, if of anything. What cannot be read is not there.
func rules() sign {
	if stands(marker()) {
		return before
	}
	all := families()
	stand := 0
	for _, f := range all {
		if stands(nft.Table{Family: f, Name: nftablesTable}) || (nft.Table{Family: f, Name: iptablesTable}).HasChain(iptablesChain) {
			stand++
		}
	}
	switch stand {
	case 0:
		return nobody
	case len(all):
		return standing
	}
	return partly
}

func stands(t nft.Table) bool {
	_, err := t.Handle()
	return err == nil
}

// families are those that kube-proxy makes rules for, whatever the cluster's: all that the
// node's kernel has.
func families() []byte {
	out := []byte{unix.NFPROTO_IPV4}
	_, err := os.Stat("/proc/net/if_inet6")
	off, _ := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	if err == nil && strings.TrimSpace(string(off)) != "1" {
		out = append(out, unix.NFPROTO_IPV6)
	}
	return out
}

// mark notes that kube-proxy has served since the node was started.
func mark() error {
	b := marker().Batch()
	b.Create()
	if err := b.Commit(); err != nil {
		return fmt.Errorf("add table %s: %w", markerTable, err)
	}
	return nil
}

// Forget takes back the note that kube-proxy has served, so that nothing is left on the node.
func Forget() error {
	b := marker().Batch()
	b.Remove()
	if err := b.Commit(); err != nil {
		return fmt.Errorf("delete table %s: %w", markerTable, err)
	}
	return nil
}
