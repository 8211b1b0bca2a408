package wire

import (
	"errors"
	"fmt"
	"strings"
)

// Block returns the rules that drop packets of a host to some UDP and TCP ports of others, and packets of
// others to these ports of the host, as a misconfigured firewall does. All other
// packets pass. A block replaces the one before.
func (p Plan) Block(hostName string, ports ...uint16) (string, error) {
	h, err := p.Find(hostName)
	if err != nil {
		return "", err
	}
	if len(ports) == 0 {
		return "", errors.New("block: no port")
	}
	return none(blockTable) + blockRules(h, ports), nil
}

func blockRules(h Host, numbers []uint16) string {
	var list []string
	for _, n := range numbers {
		list = append(list, fmt.Sprint(n))
	}
	names, blocked := ports(Plan{h}), strings.Join(list, ", ")
	var b strings.Builder
	for _, direction := range []string{"iifname", "oifname"} {
		fmt.Fprintf(&b, "\t\t%s { %s } meta l4proto { tcp, udp } th dport { %s } counter drop\n", direction, names, blocked)
	}
	return table(blockTable, "", b.String())
}
