package link

import (
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// dataPaths are links that reveal a network plugin which can deliver Services
// with eBPF, and so past the packet filter. Its tcx programs are visible only
// with CAP_BPF.
var dataPaths = map[string]struct{ plugin, delivers string }{
	"cilium_host": {
		"Cilium",
		", which delivers for Services itself if it replaces kube-proxy, and for pods if its socketLB is enabled",
	},
	"bpfin.cali": {"Calico's eBPF data plane", ""},
}

// ipvs is the link on which kube-proxy in IPVS mode keeps the addresses of Services.
const ipvs = "kube-ipvs0"

// Bypass returns what may carry packets past this node's packet filter, or "".
// Whether it really does depends on its configuration, which we cannot see.
func Bypass(links []lb.Interface) string {
	var found []string
	for _, l := range links {
		if path, ok := dataPaths[l.Name]; ok {
			found = append(found, path.plugin+" (link "+l.Name+")"+path.delivers)
		}
		if len(l.Programs) > 0 {
			found = append(found, "eBPF on "+l.Name+" ("+strings.Join(l.Programs, ", ")+")")
		}
	}
	return strings.Join(found, ", ")
}

// LooseARP reports whether kube-proxy in IPVS mode makes this node answer ARP for the
// addresses of all Services, which strictARP in its configuration prevents. The
// larger of the values for all links and for one link counts (ip-sysctl, arp_ignore).
func LooseARP(links []lb.Interface) bool {
	if !slices.ContainsFunc(links, func(l lb.Interface) bool { return l.Name == ipvs }) {
		return false
	}
	text, err := os.ReadFile("/proc/sys/net/ipv4/conf/all/arp_ignore")
	return err != nil || strings.TrimSpace(string(text)) == "0"
}

// Addresses returns the node's own addresses on its links, each once and sorted, without the addresses of Services that
// kube-proxy in IPVS mode puts on a link, and without link-local addresses where no clients are: such a link comes and
// goes with each pod.
func Addresses(links []lb.Interface) []netip.Addr {
	var out []netip.Addr
	for _, l := range links {
		if l.Name == ipvs {
			continue
		}
		for _, p := range l.Prefixes {
			if !l.NoClients || !p.Addr().IsLinkLocalUnicast() {
				out = append(out, p.Addr())
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// programs returns the eBPF programs that see a link's packets before the packet filter. It
// ignores failed listings: the link may be gone, or the kernel may have no classifiers.
func programs(d netlink.Link) []string {
	a := d.Attrs()
	if facesPods(a.Name) {
		return nil
	}
	var out []string
	if a.Xdp != nil && a.Xdp.Attached {
		out = append(out, "XDP")
	}
	filters, err := netlink.FilterList(d, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return out
	}
	for _, f := range filters {
		if bpf, ok := f.(*netlink.BpfFilter); ok {
			out = append(out, "tc "+bpf.Name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
