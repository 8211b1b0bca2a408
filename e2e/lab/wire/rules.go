package wire

import (
	"fmt"
	"strings"
)

// Tables of the switch, one for each kind of fault.
const (
	partitionTable = "lab_partition"
	cutTable       = "lab_cut"
	lossTable      = "lab_loss"
	blockTable     = "lab_block"
	policeTable    = "lab_police"
)

// Faults says what each table of the switch does when it is there.
var Faults = map[string]string{
	partitionTable: "The network is partitioned.",
	cutTable:       "The network is cut one way.",
	lossTable:      "A host loses frames.",
	blockTable:     "Ports of a host are blocked.",
	policeTable:    "The switch polices ARP.",
}

// Healed returns the rules that end all faults.
func Healed() string {
	return none(partitionTable) + none(cutTable) + none(lossTable) + none(blockTable) + none(policeTable)
}

// none makes a table and deletes it: nft of Debian 12 has no command that deletes a
// table only if it exists.
func none(table string) string {
	return "table bridge " + table + " {\n}\ndelete table bridge " + table + "\n"
}

// table renders a table with sets, and rules for the frames that the switch forwards.
func table(name, sets, rules string) string {
	return fmt.Sprintf(
		"table bridge %s {\n%s\tchain forward {\n\t\ttype filter hook forward priority 0; policy accept;\n%s\t}\n}\n",
		name,
		sets,
		rules,
	)
}

// ports lists the ports of hosts.
func ports(hosts Plan) string {
	var out []string
	for _, h := range hosts {
		for _, l := range h.Legs {
			out = append(out, fmt.Sprintf("%q", l.Port))
		}
	}
	return strings.Join(out, ", ")
}
