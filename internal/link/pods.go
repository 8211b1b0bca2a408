package link

import (
	"slices"
	"strings"
)

// podLinks are name prefixes that network plugins use for the node's ends of pods'
// links, and for the bridges and gateways in front of them.
var podLinks = []string{
	"veth", "cali", "cni", "cbr", "lxc", "eni", "azv", "gke", "weave", "kube-bridge", "antrea-gw", "ovn-k8s-mp", "ovn0",
}

// FacesPods reports whether only pods of this node are behind the link. Other links
// may lead anywhere, as tunnels do.
func (l Link) FacesPods() bool {
	return !strings.HasPrefix(l.Name, "lxcbr") && slices.ContainsFunc(podLinks, func(prefix string) bool {
		return strings.HasPrefix(l.Name, prefix)
	})
}
