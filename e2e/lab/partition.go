package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// rulesTable is the switch's table of frames to drop.
const rulesTable = "lab_partition"

// noRules makes the table and deletes it: nft of Debian 12 has no command that deletes a
// table only if it exists.
const noRules = "table bridge " + rulesTable + " {\n}\ndelete table bridge " + rulesTable + "\n"

// ParsePartition parses "A,B | C", given as one argument or as several.
func ParsePartition(args []string) ([][]string, error) {
	var groups [][]string
	for part := range strings.SplitSeq(strings.Join(args, " "), "|") {
		group := hostList(part)
		if len(group) == 0 {
			return nil, errors.New("parse partition: empty group")
		}
		groups = append(groups, group)
	}
	return groups, nil
}

// hostList splits "A,B".
func hostList(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// Partition drops every frame between hosts of different groups, ARP and NDP
// included; carrier stays. Hosts of no group reach all hosts. A single group is
// cut off from all others. A partition replaces the one before.
func (l *Lab) Partition(ctx context.Context, groups ...[]string) error {
	sides, err := l.sides(groups)
	if err != nil {
		return fmt.Errorf("partition: %w", err)
	}
	unlock, err := lock(ctx)
	if err != nil {
		return err
	}
	return errors.Join(applyRules(ctx, noRules+partitionRules(sides)), unlock())
}

func (l *Lab) sides(groups [][]string) ([][]host, error) {
	// No host may be in two groups.
	if _, err := l.find(slices.Concat(groups...)); err != nil {
		return nil, err
	}
	var sides [][]host
	for _, g := range groups {
		hosts, err := l.find(g)
		if err != nil {
			return nil, err
		}
		sides = append(sides, hosts)
	}
	switch len(sides) {
	case 0:
		return nil, errors.New("no group")
	case 1:
		rest := slices.DeleteFunc(slices.Clone(l.Plan), func(h host) bool {
			return slices.ContainsFunc(sides[0], func(in host) bool { return in.Name == h.Name })
		})
		if len(rest) == 0 {
			return nil, errors.New("the only group has all hosts")
		}
		sides = append(sides, rest)
	}
	return sides, nil
}

// partitionRules renders the drops as input of nft. Names of ports outlive a
// power cycle, and so does the partition.
func partitionRules(sides [][]host) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table bridge %s {\n\tchain forward {\n\t\ttype filter hook forward priority 0; policy accept;\n", rulesTable)
	for i, from := range sides {
		for j, to := range sides {
			if i != j {
				fmt.Fprintf(&b, "\t\tiifname { %s } oifname { %s } counter drop\n", ports(from), ports(to))
			}
		}
	}
	b.WriteString("\t}\n}\n")
	return b.String()
}

func ports(hosts []host) string {
	var out []string
	for _, h := range hosts {
		for _, l := range h.Legs {
			out = append(out, fmt.Sprintf("%q", l.Port))
		}
	}
	return strings.Join(out, ", ")
}

func applyRules(ctx context.Context, rules string) error {
	if _, err := output(ctx, rules, "nsenter", "--net="+netnsDir+"/"+switchNetns, "nft", "-f", "-"); err != nil {
		return fmt.Errorf("set rules of the switch: %w", err)
	}
	return nil
}
