package wire

import (
	"errors"
	"fmt"
	"strings"
)

// Block returns the rules that drop packets between a host and others to and from some UDP and TCP ports, as a
// misconfigured firewall does that knows no connections. All other packets pass. A block replaces the one before.
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
		for _, end := range []string{"dport", "sport"} {
			fmt.Fprintf(
				&b,
				"\t\t%s { %s } meta l4proto { tcp, udp } th %s { %s } counter drop\n",
				direction,
				names,
				end,
				blocked,
			)
		}
	}
	return table(blockTable, "", b.String())
}

// Police returns the rules by which the switch passes ARP to a host up to a rate, as a router does that protects its
// control plane. They replace an earlier policer.
func (p Plan) Police(hostName string, perSecond, burst int) (string, error) {
	h, err := p.Find(hostName)
	if err != nil {
		return "", err
	}
	const rule = "\t\toifname { %s } ether type arp limit rate over %d/second burst %d packets counter drop\n"
	rules := fmt.Sprintf(rule, ports(Plan{h}), perSecond, burst)
	return none(policeTable) + table(policeTable, "", rules), nil
}
