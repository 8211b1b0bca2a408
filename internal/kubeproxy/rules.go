package kubeproxy

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/google/nftables"
)

// Where kube-proxy's rules are. In mode nftables its table is made together with all that
// it holds. In modes iptables and IPVS (seen where iptables works by nf_tables) its first
// chains are made ahead of their rules; this one comes with them.
const (
	nftablesTable = "kube-proxy"
	iptablesTable = "nat"
	iptablesChain = "KUBE-MARK-MASQ"
)

// marker is an empty table. It is in the kernel for as long as the node runs, whatever becomes of speakers.
var marker = &nftables.Table{Name: "holdfast-booted", Family: nftables.TableFamilyINet}

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
	c, err := nftables.New()
	if err != nil {
		return nobody
	}
	if _, err := c.ListTableOfFamily(marker.Name, marker.Family); err == nil {
		return before
	}
	all := families()
	stand := 0
	for _, f := range all {
		if rulesOf(c, f) {
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

func rulesOf(c *nftables.Conn, f nftables.TableFamily) bool {
	if _, err := c.ListTableOfFamily(nftablesTable, f); err == nil {
		return true
	}
	_, err := c.ListChain(&nftables.Table{Name: iptablesTable, Family: f}, iptablesChain)
	return err == nil
}

// families are those that kube-proxy makes rules for, whatever the cluster's: all that the
// node's kernel has.
func families() []nftables.TableFamily {
	out := []nftables.TableFamily{nftables.TableFamilyIPv4}
	_, err := os.Stat("/proc/net/if_inet6")
	off, _ := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	if err == nil && strings.TrimSpace(string(off)) != "1" {
		out = append(out, nftables.TableFamilyIPv6)
	}
	return out
}

// mark notes that kube-proxy has served since the node was started.
func mark() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nf_tables: %w", err)
	}
	c.AddTable(marker)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("add table %s: %w", marker.Name, err)
	}
	return nil
}

// Forget takes back the note that kube-proxy has served, so that nothing is left on the node.
func Forget() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nf_tables: %w", err)
	}
	c.AddTable(marker)
	c.DelTable(marker)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("delete table %s: %w", marker.Name, err)
	}
	return nil
}
