package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

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

// Partition returns the rules that drop every frame between hosts of different groups, ARP and NDP
// included; carrier stays. Hosts of no group reach all hosts. A single group is
// cut off from all others. A partition replaces the one before.
func (p Plan) Partition(groups ...[]string) (string, error) {
	sides, err := p.sides(groups)
	if err != nil {
		return "", fmt.Errorf("partition: %w", err)
	}
	return none(partitionTable) + partitionRules(sides), nil
}

func (p Plan) sides(groups [][]string) ([]Plan, error) {
	// No host may be in two groups.
	if _, err := p.find(slices.Concat(groups...)); err != nil {
		return nil, err
	}
	var sides []Plan
	for _, g := range groups {
		hosts, err := p.find(g)
		if err != nil {
			return nil, err
		}
		sides = append(sides, hosts)
	}
	switch len(sides) {
	case 0:
		return nil, errors.New("no group")
	case 1:
		rest := slices.DeleteFunc(slices.Clone(p), func(h Host) bool {
			return slices.ContainsFunc(sides[0], func(in Host) bool { return in.Name == h.Name })
		})
		if len(rest) == 0 {
			return nil, errors.New("the only group has all hosts")
		}
		sides = append(sides, rest)
	}
	return sides, nil
}

// partitionRules renders the drops. Names of ports outlive a power cycle, and so does the partition.
func partitionRules(sides []Plan) string {
	var b strings.Builder
	for i, from := range sides {
		for j, to := range sides {
			if i != j {
				fmt.Fprintf(&b, "\t\tiifname { %s } oifname { %s } counter drop\n", ports(from), ports(to))
			}
		}
	}
	return table(partitionTable, "", b.String())
}
