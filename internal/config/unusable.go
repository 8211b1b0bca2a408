package config

import (
	"maps"
	"net/netip"
	"slices"

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

// unusableRanges are ranges that no pool can have.
func unusableRanges() claims {
	var out claims
	for _, n := range neverHosts {
		p := netip.MustParsePrefix(n.prefix)
		out = append(out, claimed{lb.Range{From: p.Addr(), To: lastOf(p)}, owner{unusable: n.what}})
	}
	slices.SortFunc(out, func(a, b claimed) int { return a.From.Compare(b.From) })
	return out
}

// nodeAddresses returns the addresses in ranges of each pool that Nodes list as their own, with the name of a Node: a Service
// that got one would cut the node off. The ranges keep them. What a Service has already stays as it is, since nobody can tell
// whether the Node tells the truth.
func (c claims) nodeAddresses(nodes map[string]lb.Node) map[string]map[netip.Addr]string {
	out := map[string]map[netip.Addr]string{}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		for _, a := range nodes[name].Addresses {
			i := c.at(a)
			if i == len(c) || !c[i].Contains(a) || c[i].owner.pool == "" || out[c[i].owner.pool][a] != "" {
				continue
			}
			if out[c[i].owner.pool] == nil {
				out[c[i].owner.pool] = map[netip.Addr]string{}
			}
			out[c[i].owner.pool][a] = name
		}
	}
	return out
}
