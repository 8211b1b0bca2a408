package filter

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// nftablesProxy is what kube-proxy does in nftables mode to a Service with loadBalancerSourceRanges.
func nftablesProxy(w *world) {
	const table = `
table %[1]s kube-proxy {
	chain firewall-check { %[1]s daddr %[2]s meta l4proto { tcp, udp } th dport 80 %[1]s saddr != %[5]s drop
	}
	chain services {
		%[1]s daddr %[2]s meta l4proto { tcp, udp } th dport 80 meta mark set meta mark or 0x4000 dnat to %[4]s
		%[1]s daddr %[3]s %[1]s saddr != %[6]s meta l4proto { tcp, udp } th dport 80 meta mark set meta mark or 0x4000
		%[1]s daddr %[3]s %[1]s saddr %[4]s meta mark set meta mark or 0x4000
		%[1]s daddr %[3]s meta l4proto { tcp, udp } th dport 80 dnat to %[4]s
	}
	chain filter-prerouting { type filter hook prerouting priority -110; ct state new jump firewall-check
	}
	chain filter-output { type filter hook output priority -110; ct state new jump firewall-check
	}
	chain nat-prerouting { type nat hook prerouting priority -100; jump services
	}
	chain nat-output { type nat hook output priority -100; jump services
	}
	chain nat-postrouting { type nat hook postrouting priority 100; meta mark and 0x4000 == 0x4000 meta mark set meta mark xor 0x4000 masquerade
	}
}`
	w.nft(fmt.Sprintf(table, "ip", vip4, cluster4, pod4, client4, "10.244.0.0/16") +
		fmt.Sprintf(table, "ip6", vip6, cluster6, pod6, client6, "fd00::/56"))
}

// iptablesProxy is what kube-proxy does in iptables mode to the same Service.
func iptablesProxy(w *world) {
	const rules = `*filter
:KUBE-PROXY-FIREWALL - [0:0]
-A INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A KUBE-PROXY-FIREWALL -d %[1]s -p tcp --dport 80 -j DROP
-A KUBE-PROXY-FIREWALL -d %[1]s -p udp --dport 80 -j DROP
-A FORWARD -m conntrack --ctstate INVALID -j DROP
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC - [0:0]
:KUBE-EXT - [0:0]
:KUBE-FW - [0:0]
:KUBE-SEP - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A KUBE-SERVICES -d %[2]s -p tcp --dport 80 -j KUBE-SVC
-A KUBE-SERVICES -d %[2]s -p udp --dport 80 -j KUBE-SVC
-A KUBE-SERVICES -d %[1]s -p tcp --dport 80 -j KUBE-FW
-A KUBE-SERVICES -d %[1]s -p udp --dport 80 -j KUBE-FW
-A KUBE-FW -s %[4]s -j KUBE-EXT
-A KUBE-EXT -j KUBE-MARK-MASQ
-A KUBE-EXT -j KUBE-SVC
-A KUBE-SVC ! -s %[5]s -d %[2]s -j KUBE-MARK-MASQ
-A KUBE-SVC -j KUBE-SEP
-A KUBE-SEP -s %[3]s -j KUBE-MARK-MASQ
-A KUBE-SEP -p tcp -j DNAT --to-destination %[3]s
-A KUBE-SEP -p udp -j DNAT --to-destination %[3]s
COMMIT
`
	for command, args := range map[string][]any{
		"iptables-restore":  {vip4, cluster4, pod4, client4, "10.244.0.0/16"},
		"ip6tables-restore": {vip6, cluster6, pod6, client6, "fd00::/56"},
	} {
		if _, err := exec.LookPath(command); err != nil {
			w.t.Skip("no iptables here to make the tables of others")
		}
		cmd := w.node.Command(command)
		cmd.Stdin = strings.NewReader(fmt.Sprintf(rules, args...))
		if out, err := cmd.CombinedOutput(); err != nil {
			w.t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
}

func TestInternalWithNFTables(t *testing.T) {
	nstest.Run(t, func(t *testing.T) { testInternal(t, nftablesProxy) })
}

func TestInternalWithIPTables(t *testing.T) {
	nstest.Run(t, func(t *testing.T) { testInternal(t, iptablesProxy) })
}

// Traffic from a pod and from the node passes source ranges, ours and kube-proxy's, where the Service asks for it, and
// sees the external address answer; from outside it does not, not with a pod's address either, and not by a link that
// came up later. Elsewhere pods and the node are sources like any other.
func testInternal(t *testing.T, proxy func(*world)) {
	w := newWorld(t)
	// A second pod, beside the serving pod, and the serving pod itself.
	other := w.node.Attach("pod1", []string{"10.244.0.5/30", "fd00::5:1/112"}, "10.244.0.6/30", "fd00::5:2/112")
	w.pod.Output("ip", "route", "add", "10.244.0.6", "via", "10.244.0.1")
	w.pod.Output("ip", "-6", "route", "add", "fd00::5:2", "via", "fd00::1")
	proxy(w)
	w.serve(w.pod, 80)
	// A forger beyond the uplink has a pod's address, and answers find it.
	forged4, forged6 := "10.244.0.77", "fd00::77"
	w.client.AddAddress("eth0", forged4+"/32", forged6+"/128")
	w.node.Output("ip", "route", "add", forged4, "dev", "eth0")
	w.node.Output("ip", "-6", "route", "add", forged6, "dev", "eth0")

	restricted := func(vip, cluster, client string) []lb.Frontend {
		var frontends []lb.Frontend
		for _, protocol := range []string{"TCP", "UDP"} {
			frontends = append(frontends, lb.Frontend{
				Address: addr(vip), Protocol: protocol, Port: 80,
				Access: lb.Access{Restricted: true, Allow: prefixes(client)}, ClusterIP: addr(cluster),
			})
		}
		return frontends
	}
	tunnel := w.tunnel()
	for _, internal := range []bool{true, false} {
		d := desired(append(restricted(vip4, cluster4, client4+"/32"), restricted(vip6, cluster6, client6+"/128")...)...)
		d.PodLinks = []string{"pod*"}
		for i := range d.Frontends {
			if !internal {
				d.Frontends[i].ClusterIP = netip.Addr{}
			}
		}
		w.set(d)
		within := silence
		if internal {
			within = answer
		}
		for _, f := range []struct{ vip, client, stranger, forged string }{
			{vip4, client4, stranger4, forged4}, {vip6, client6, stranger6, forged6},
		} {
			for _, network := range []string{"tcp", "udp"} {
				t.Log(internal, network, f.vip)
				w.finds(answer, w.client, network, f.client, f.vip, 80)
				w.finds(silence, w.client, network, f.stranger, f.vip, 80)
				w.finds(silence, w.client, network, f.forged, f.vip, 80)
				w.finds(silence, tunnel, network, "", f.vip, 80)
				w.finds(within, other, network, "", f.vip, 80)
				w.finds(within, w.node, network, "", f.vip, 80)
			}
			if internal {
				w.finds(answer, w.pod, "tcp", "", f.vip, 80)
			}
		}
	}
}

// tunnel adds a stranger behind a link of which the filter is never told.
func (w *world) tunnel() *nstest.NS {
	far := w.node.Attach("wg1", []string{"10.99.0.1/24", "fd99::1/64"}, "10.99.0.2/24", "fd99::2/64")
	w.node.Sysctl("ipv4/conf/wg1/rp_filter", "0")
	return far
}

// TestClusterSources: sources within the cluster are in the lists like any other, also where only our own lists name
// them, and the node's own packets too.
func TestClusterSources(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		for _, f := range []struct{ vip, pod, node string }{{vip4, pod4, node4}, {vip6, pod6, node6}} {
			bits := "/" + fmt.Sprint(addr(f.vip).BitLen())
			for _, tt := range []struct {
				name        string
				allow, deny []string
				pod, node   string
			}{
				{"only the pod", []string{f.pod + bits}, nil, answer, silence},
				{"only the node", []string{f.node + bits}, nil, silence, answer},
				{"all but the node", nil, []string{f.node + bits}, answer, silence},
				{"all but the pod", nil, []string{f.pod + bits}, silence, answer},
			} {
				fe := tcp(f.vip)
				fe.Restricted, fe.Allow, fe.Deny = tt.allow != nil, prefixes(tt.allow...), prefixes(tt.deny...)
				d := desired(fe)
				d.PodLinks = []string{"pod*"}
				w.set(d)
				t.Log(tt.name, f.vip)
				w.finds(tt.pod, w.pod, "tcp", "", f.vip, 80)
				w.finds(tt.node, w.node, "tcp", f.node, f.vip, 80)
			}
		}
	})
}

// TestClusterIPsInPool: a pool that covers ClusterIPs by mistake takes none from pods and the node; the API server's is
// one of them.
func TestClusterIPsInPool(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		d := desired(tcp(vip4), tcp(vip6))
		d.Guarded = append(d.Guarded, between("10.0.0.0", "10.255.255.255"), between("fd00::", "fdff::"))
		d.PodLinks = []string{"pod*"}
		w.set(d)
		for _, cluster := range []string{cluster4, cluster6} {
			w.finds(answer, w.pod, "tcp", "", cluster, 80)
			w.finds(answer, w.node, "tcp", "", cluster, 80)
		}
	})
}

// TestForeignMachines: pods and the node reach machines whose addresses are in a pool by mistake; from outside, these
// addresses stay closed.
func TestForeignMachines(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w := newWorld(t)
		w.serve(w.client, 53)
		w.client.AddAddress("eth0", "192.0.2.53/32", "2001:db8:f::53/128")
		w.client.Output("ip", "route", "add", "10.244.0.0/24", "via", node4)
		w.client.Output("ip", "-6", "route", "add", "fd00::/64", "via", node6)
		tunnel := w.tunnel()
		w.client.Output("ip", "route", "add", "10.99.0.0/24", "via", node4)
		w.client.Output("ip", "-6", "route", "add", "fd99::/64", "via", node6)
		d := desired(tcp(vip4), tcp(vip6))
		d.PodLinks = []string{"pod*"}
		w.set(d)
		for _, foreign := range []string{"192.0.2.53", "2001:db8:f::53"} {
			w.finds(answer, w.pod, "tcp", "", foreign, 53)
			w.finds(answer, w.node, "tcp", "", foreign, 53)
			w.finds(silence, tunnel, "tcp", "", foreign, 53)
		}
		// What a Service has stays closed but for its ports.
		w.finds(silence, w.pod, "tcp", "", vip4, 53)
		w.finds(silence, w.pod, "tcp", "", vip6, 53)
	})
}

// TestRefusedElsewhere: a node without an endpoint of a Service with externalTrafficPolicy: Local refuses clients, and
// leaves its pods and itself to kube-proxy, which leads them to the endpoints of other nodes.
func TestRefusedElsewhere(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		for _, vip := range []string{vip4, vip6} {
			fe := tcp(vip)
			fe.Refuse = true
			d := desired(fe)
			d.PodLinks = []string{"pod0"}
			w.set(d)
			w.finds(refused, w.client, "tcp", "", vip, 80)
			w.finds(answer, w.pod, "tcp", "", vip, 80)
			w.finds(answer, w.node, "tcp", "", vip, 80)
		}
	})
}

// TestInside: the cluster's own traffic passes the lists, limits and refusal of a frontend with Inside, to its own
// address, and nothing from outside does.
func TestInside(t *testing.T) {
	serving(t, func(t *testing.T, w *world) {
		for _, vip := range []string{vip4, vip6} {
			for _, refuse := range []bool{false, true} {
				fe := tcp(vip)
				fe.Restricted = true
				fe.RateLimit = 1
				fe.Refuse = refuse
				fe.Inside = true
				fe.Deny = prefixes(map[string]string{vip4: pod4 + "/32", vip6: pod6 + "/128"}[vip])
				d := desired(fe)
				d.PodLinks = []string{"pod*"}
				w.set(d)
				for range 3 {
					w.finds(answer, w.pod, "tcp", "", vip, 80)
					w.finds(answer, w.node, "tcp", "", vip, 80)
				}
				w.finds(silence, w.client, "tcp", "", vip, 80)
				fe.Inside = false
				w.set(desired(fe))
				w.finds(silence, w.pod, "tcp", "", vip, 80)
			}
		}
	})
}
