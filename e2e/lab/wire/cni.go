package wire

import (
	"fmt"
	"net/netip"
)

// ConflistFile is where a node's runtime finds the configuration of its pods' network.
const ConflistFile = "/etc/cni/net.d/10-lab.conflist"

// Conflist configures the pods' network of a node: a pair of links for each pod, and routes between the nodes
// that others set.
func Conflist(pods4, pods6 netip.Prefix) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "lab", "plugins": [
  {"type": "ptp", "mtu": 1500, "ipMasq": false, "ipam": {"type": "host-local", "dataDir": "/var/lib/cni",
    "ranges": [[{"subnet": "%s"}], [{"subnet": "%s"}]],
    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
`, pods4, pods6)
}
