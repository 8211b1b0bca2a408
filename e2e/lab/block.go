package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// blockTable is the switch's table of ports that are blocked for a host.
const blockTable = "lab_block"

// noBlock deletes the table, as noRules does.
const noBlock = "table bridge " + blockTable + " {\n}\ndelete table bridge " + blockTable + "\n"

// Block drops packets of a host to some UDP and TCP ports of others, and packets of
// others to these ports of the host, as a misconfigured firewall does. All other
// packets pass. It replaces an earlier block.
func (l *Lab) Block(ctx context.Context, hostName string, ports ...uint16) error {
	h, err := findHost(l.Plan, hostName)
	if err != nil {
		return err
	}
	if len(ports) == 0 {
		return errors.New("block: no port")
	}
	unlock, err := lock(ctx)
	if err != nil {
		return err
	}
	return errors.Join(applyRules(ctx, noBlock+blockRules(h, ports)), unlock())
}

func blockRules(h host, numbers []uint16) string {
	var list []string
	for _, n := range numbers {
		list = append(list, fmt.Sprint(n))
	}
	names, blocked := ports([]host{h}), strings.Join(list, ", ")
	var b strings.Builder
	fmt.Fprintf(&b, "table bridge %s {\n\tchain forward {\n\t\ttype filter hook forward priority 0; policy accept;\n", blockTable)
	for _, direction := range []string{"iifname", "oifname"} {
		fmt.Fprintf(&b, "\t\t%s { %s } meta l4proto { tcp, udp } th dport { %s } counter drop\n", direction, names, blocked)
	}
	b.WriteString("\t}\n}\n")
	return b.String()
}
