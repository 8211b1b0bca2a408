package filter

import (
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// podWorld is a world whose pool covers its pod, and in which kube-proxy translates some more destinations to the pod.
func podWorld(t *testing.T, links ...string) (*world, draft) {
	w := newWorld(t)
	w.proxy()
	w.serve(w.pod, 80, 81, 82)
	w.serve(w.node, 22)
	d := desired(tcp(vip4), tcp(vip6))
	d.Guarded = []lb.Range{between("10.244.0.0", "10.244.255.255"), between("192.0.2.0", "192.0.2.255"),
		between("2001:db8:f::", "2001:db8:f::ffff"), between("fd00::", "fd00::ffff")}
	d.PodLinks = links
	w.set(d)
	return w, d
}

// TestPodInPool: a pool covers the addresses of pods. Another node reaches the pods of this one where the node's own
// route leads there, and nothing else: no address without such a route, no address of a Service, and not the node
// itself.
func TestPodInPool(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w, d := podWorld(t, "pod*")
		for pod, vip := range map[string]string{pod4: vip4, pod6: vip6} {
			for _, port := range []int{80, 82} {
				w.finds(answer, w.client, "tcp", "", pod, port)
				w.finds(answer, w.client, "udp", "", pod, port)
			}
			w.finds(answer, w.node, "tcp", "", pod, 80)
			w.finds(answer, w.client, "tcp", "", vip, 80)
			w.finds(silence, w.client, "tcp", "", vip, 81)
		}
		// The node's end of the link is local, and not a pod.
		for _, gateway := range []string{"10.244.0.1", "fd00::1"} {
			w.finds(silence, w.client, "tcp", "", gateway, 22)
		}
		// The same link is none of pods.
		d.PodLinks = nil
		w.set(d)
		for _, pod := range []string{pod4, pod6} {
			w.finds(silence, w.client, "tcp", "", pod, 80)
		}
		// The address is a Service's.
		d.PodLinks = []string{"pod*"}
		d.Frontends = append(d.Frontends, tcp(pod4), tcp(pod6))
		w.set(d)
		for _, pod := range []string{pod4, pod6} {
			w.finds(silence, w.client, "tcp", "", pod, 81)
		}
		d.Frontends = d.Frontends[:2]
		d.NoRoutes = true
		w.set(d)
		for _, pod := range []string{pod4, pod6} {
			w.finds(silence, w.client, "tcp", "", pod, 80)
		}
	})
}

// TestNoRouteIsNoPod: where the node has no route, or a route that refuses, the guard stays closed, even for packets
// that kube-proxy would translate.
func TestNoRouteIsNoPod(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w, _ := podWorld(t, "pod*")
		w.nft(`table inet others {
			chain c {
			type nat hook prerouting priority -100;
			ip daddr { 192.0.2.77, 10.244.9.9 } meta l4proto tcp dnat ip to ` + pod4 + `
			ip6 daddr { 2001:db8:f::77, fd00::909 } meta l4proto tcp dnat ip6 to ` + pod6 + `
			}
		}
		`)
		w.node.Output("ip", "route", "add", "blackhole", "10.244.9.9/32")
		w.node.Output("ip", "-6", "route", "add", "blackhole", "fd00::909/128")
		stays := []string{"192.0.2.77", "2001:db8:f::77", "10.244.9.9", "fd00::909"}
		for _, a := range stays {
			w.finds(silence, w.client, "tcp", "", a, 80)
		}
		w.node.Output("ip", "route", "del", "default")
		w.node.Output("ip", "-6", "route", "del", "default")
		for _, a := range stays {
			w.finds(silence, w.client, "tcp", "", a, 80)
		}
	})
}

// TestPodKeepsItsAddress: a Service has addresses of the pods' network in spec.externalIPs, and kube-proxy translates
// them. The pod that has the address gets its connections; without a pod, no connection from outside succeeds.
func TestPodKeepsItsAddress(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		w, _ := podWorld(t, "pod*")
		other := w.node.Attach("pod1", []string{"10.245.0.1/24", "fd02::1/64"}, "10.245.0.2/24", "fd02::2/64")
		w.serve(other, 90)
		w.nft(`table inet others {
			chain c {
			type nat hook prerouting priority -100;
			ip daddr { 10.244.0.2, 10.244.0.99 } meta l4proto { tcp, udp } dnat ip to 10.245.0.2
			ip6 daddr { fd00::2, fd00::99 } meta l4proto { tcp, udp } dnat ip6 to fd02::2
			}
		}
		`)
		for _, pod := range []string{pod4, pod6} {
			w.finds(answer, w.client, "tcp", "", pod, 80)
			w.finds(answer, w.client, "udp", "", pod, 80)
			if got := knock(w.client, "tcp", "", pod, 90, patient); got != refused {
				t.Errorf("%s port 90: found %s at the pod", pod, got)
			}
		}
		for _, nobody := range []string{"10.244.0.99", "fd00::99"} {
			for _, network := range []string{"tcp", "udp"} {
				if got := knock(w.client, network, "", nobody, 90, silent); got == answer {
					t.Errorf("%s %s: a Service opens it by spec.externalIPs", network, nobody)
				}
			}
		}
	})
}

// TestTryRoutes: the kernel here can look up routes.
func TestTryRoutes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		must(t, Try(Extras{Routes: true, Internal: true, Log: true}))
	})
}
