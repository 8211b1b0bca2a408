package filter

import (
	"fmt"
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

// Traffic from a pod and from the node passes source ranges, ours and kube-proxy's, and sees the external
// address answer; from outside it does not, not with a pod's address either.
func testInternal(t *testing.T, proxy func(*world)) {
	w := newWorld(t)
	// A second pod, beside the one that serves, and the serving one itself.
	other := nstest.New(t)
	nstest.Veth(t, w.node, "pod1", other, "eth0")
	w.node.AddAddress("pod1", "10.244.0.5/30", "fd00::5:1/112")
	other.AddAddress("eth0", "10.244.0.6/30", "fd00::5:2/112")
	other.Output("ip", "route", "add", "default", "via", "10.244.0.5")
	other.Output("ip", "-6", "route", "add", "default", "via", "fd00::5:1")
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
				Address: addr(vip), Protocol: protocol, Port: 80, Restricted: true, Allow: prefixes(client), ClusterIP: addr(cluster),
			})
		}
		return frontends
	}
	d := desired(append(restricted(vip4, cluster4, client4+"/32"), restricted(vip6, cluster6, client6+"/128")...)...)
	d.PodCIDRs, d.Uplinks = prefixes("10.244.0.0/24", "fd00::/64"), []string{"eth0"}
	for _, internal := range []bool{true, false} {
		d.Internal = internal
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
				w.finds(within, other, network, "", f.vip, 80)
				w.finds(within, w.node, network, "", f.vip, 80)
			}
			if internal {
				w.finds(answer, w.pod, "tcp", "", f.vip, 80)
			}
		}
	}
	// Which links lead out is unknown: nobody counts as a pod.
	d.Internal, d.Uplinks = true, nil
	w.set(d)
	w.finds(silence, other, "tcp", "", vip4, 80)
	w.finds(silence, w.client, "tcp", forged4, vip4, 80)
}
