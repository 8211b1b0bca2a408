package link

import (
	"slices"
	"strings"
)

// podLinks are beginnings of the names that network plugins give to the node's
// ends of pods' links, and to the bridges and gateways in front of them.
var podLinks = []string{
	"veth", "cali", "cni", "cbr", "lxc", "eni", "azv", "gke", "weave", "kube-bridge", "antrea-gw", "ovn-k8s-mp", "ovn0",
}

// FacesPods reports whether only pods of this node are behind the link. A link
// that is not known to be such may lead anywhere: tunnels do.
func (l Link) FacesPods() bool {
	return !strings.HasPrefix(l.Name, "lxcbr") && slices.ContainsFunc(podLinks, func(prefix string) bool {
		return strings.HasPrefix(l.Name, prefix)
	})
}
