package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// neverHosts are addresses that no router delivers to a Service. The network and
// broadcast addresses of a prefix are not included: behind a route they are
// ordinary addresses, and avoidBuggyIPs excludes them where they are not.
var neverHosts = []struct{ prefix, what string }{
	{"0.0.0.0/32", "unspecified"},
	{"127.0.0.0/8", "loopback"},
	{"169.254.0.0/16", "link-local"},
	{"224.0.0.0/4", "multicast"},
	{"255.255.255.255/32", "broadcast"},
	{"::/128", "unspecified"},
	{"::1/128", "loopback"},
	{"::ffff:0:0/96", "IPv4 in IPv6 form"},
	{"fe80::/10", "link-local"},
	{"ff00::/8", "multicast"},
}

// unusableRanges are ranges that no pool can have. Assigning a node's own address
// to a Service would cut the node off.
func unusableRanges(nodes map[string]lb.Node) claims {
	var out claims
	for _, n := range neverHosts {
		p := netip.MustParsePrefix(n.prefix)
		out = append(out, claimed{lb.Range{From: p.Addr(), To: lastOf(p)}, owner{unusable: n.what}})
	}
	taken := map[netip.Addr]bool{}
	never := len(out)
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		for _, a := range nodes[name].Addresses {
			inside := slices.ContainsFunc(out[:never], func(c claimed) bool { return c.Contains(a) })
			if taken[a] || inside {
				continue
			}
			taken[a] = true
			out = append(out, claimed{lb.Range{From: a, To: a}, owner{unusable: fmt.Sprintf("node %q", name)}})
		}
	}
	slices.SortFunc(out, func(a, b claimed) int { return a.From.Compare(b.From) })
	return out
}

// listUnusable lists ranges and their meaning for a message. The message must not grow with the cluster.
func listUnusable(all []claimed) string {
	const most = 5
	slices.SortFunc(all, func(a, b claimed) int { return cmp.Or(a.From.Compare(b.From), a.To.Compare(b.To)) })
	var words []string
	for _, c := range all[:min(most, len(all))] {
		words = append(words, fmt.Sprintf("%s (%s)", c.Range, c.owner.unusable))
	}
	if more := len(all) - len(words); more > 0 {
		words = append(words, fmt.Sprintf("%d more", more))
	}
	return strings.Join(words, ", ")
}
