package link

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// podLinks are name prefixes that network plugins, and no other programs, use for the node's ends of pods' links, and
// for the bridges and gateways in front of them.
var podLinks = []string{
	"cali", "cni", "cbr", "lxc", "eni", "azv", "gke", "weave", "kube-bridge", "antrea-gw", "ovn-k8s-mp", "ovn0",
}

// notPods are name prefixes of other programs that begin like a plugin's.
var notPods = []string{"lxcbr"}

// dockerBridge is the name of the bridge of a network that a user of Docker made.
var dockerBridge = regexp.MustCompile("^br-[0-9a-f]{12}$")

// excluded are name prefixes of links of container networks, hypervisors and tunnels, which have no clients, whatever
// else speaks for them: the same set as in MetalLB, and the tunnels of Calico and Cilium, whose addresses need not be
// in the Node's podCIDR.
var excluded = []string{
	"docker", "cbr", "dummy", "virbr", "lxcbr", "veth", "cali", "tunl",
	"flannel", "kube-ipvs", "cni", "nodelocaldns", "lxc",
	"vxlan.calico", "vxlan-v6.calico", "wireguard.cali", "wg-v6.cali", "cilium_",
}

// Surroundings are what the cluster says about the networks of this node's links.
type Surroundings struct {
	// Outside are addresses that others than pods reach: the node's, and the first and last ones of pools.
	Outside []netip.Addr
	// Pods are the ranges of this node's pods.
	Pods []netip.Prefix
}

// inside reports whether a link leads to pods and containers of this node only: no machine there needs an announcement,
// and a claim of an address there conflicts with none. The links with the default route and with an address of Outside
// in their subnets are none. A bridge between pods has NoClients already: see read.
func (s Surroundings) inside(l lb.Interface) bool {
	if l.Default ||
		slices.ContainsFunc(
			l.Prefixes,
			func(p netip.Prefix) bool { return slices.ContainsFunc(s.Outside, p.Contains) },
		) {
		return false
	}
	return l.NoClients ||
		dockerBridge.MatchString(l.Name) ||
		hasPrefix(l.Name, podLinks) &&
			!hasPrefix(l.Name, notPods) ||
		slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return slices.ContainsFunc(s.Pods, p.Overlaps) })
}

func hasPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// facesPods reports whether only pods of this node are behind a link, as far as its name shows.
func facesPods(name string) bool {
	return hasPrefix(name, append([]string{"veth"}, podLinks...)) && !hasPrefix(name, notPods)
}

// PodLinks returns which links lead to pods of this node and nowhere else: names, and prefixes of names with a * at the
// end, so that a pod's link counts from the moment at which it appears. Any other link may lead anywhere, as tunnels
// do.
//
// That is another question than Interface.NoClients. No client of the LAN is behind a tunnel with an address of the
// pods' range, so it is inside; but packets of other machines come out of it, so none of them counts as a pod's.
//
// They are the links that network plugins name, those with one of the prefixes in more, and every veth pair that is a
// pod's by what it carries. No link counts that has the default route or announces addresses; then the other links with
// its prefix are named one by one. Announcing are the names of links that announce although their name excludes them.
func PodLinks(links []lb.Interface, node []netip.Addr, announcing, more []string) []string {
	outside := func(l lb.Interface) bool {
		return l.Loopback ||
			l.Default ||
			hasPrefix(l.Name, notPods) ||
			slices.Contains(announcing, l.Name) ||
			carries(l, node)
	}
	var out []string
	for _, prefix := range slices.Concat(podLinks, more) {
		named := slices.DeleteFunc(
			slices.Clone(links),
			func(l lb.Interface) bool { return !strings.HasPrefix(l.Name, prefix) },
		)
		if !slices.ContainsFunc(named, outside) {
			out = append(out, prefix+"*")
			continue
		}
		for _, l := range named {
			if !outside(l) {
				out = append(out, l.Name)
			}
		}
	}
	for _, l := range links {
		if l.Veth && !l.Port && hasPrefix(l.Name, excluded) && !outside(l) && !hasNetwork(l) {
			out = append(out, l.Name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// carries reports whether one of the addresses is on the link.
func carries(l lb.Interface, addresses []netip.Addr) bool {
	return slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool { return slices.Contains(addresses, p.Addr()) })
}

// hasNetwork reports whether the link has more than one host beyond it. Plugins that give pods a veth pair and no
// bridge put the pods' gateway on the node's end, as a single address.
func hasNetwork(l lb.Interface) bool {
	return slices.ContainsFunc(l.Prefixes, func(p netip.Prefix) bool {
		return !p.IsSingleIP() &&
			!p.Addr().IsLinkLocalUnicast()
	})
}
