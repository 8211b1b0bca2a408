package link

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestBypass(t *testing.T) {
	eth := lb.Interface{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}}
	run := eth
	run.Programs = []string{"XDP", "tc cil_from_netdev"}
	for _, tt := range []struct {
		links []lb.Interface
		want  string
	}{
		{[]lb.Interface{eth, {Name: "cni0"}}, ""},
		{[]lb.Interface{eth, {Name: "cilium_host"}},
			"Cilium (link cilium_host), which delivers for Services itself if it replaces kube-proxy, and for pods if its " +
				"socketLB is enabled"},
		{[]lb.Interface{run, {Name: "bpfin.cali"}},
			"eBPF on eth0 (XDP, tc cil_from_netdev), Calico's eBPF data plane (link bpfin.cali)"},
	} {
		if got := Bypass(tt.links); got != tt.want {
			t.Errorf("Bypass = %q, want %q", got, tt.want)
		}
	}
	services := lb.Interface{Name: "kube-ipvs0", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.70/32")}}
	if got := fmt.Sprint(Addresses([]lb.Interface{eth, services})); got != "[192.0.2.1]" {
		t.Errorf("Addresses = %s", got)
	}
}

// TestAddresses: the start and end of a pod, with a link-local address on the node's end of its link or the gateway
// that the ends of all pods' links have, changes none of the node's addresses.
//
// Trap: each start of a pod makes all Services be planned from nothing.
func TestAddresses(t *testing.T) {
	with := func(name string, noClients bool, prefixes ...string) lb.Interface {
		l := lb.Interface{Name: name, NoClients: noClients}
		for _, p := range prefixes {
			l.Prefixes = append(l.Prefixes, netip.MustParsePrefix(p))
		}
		return l
	}
	node := []lb.Interface{
		with("lo", false, "127.0.0.1/8"), with("eth0", false, "192.0.2.1/24", "fe80::1/64"),
		with("cni0", true, "10.244.1.1/24", "fe80::2/64"),
		with("cali1", true, "10.244.1.1/32"),
	}
	want := fmt.Sprint(Addresses(node))
	if want != "[10.244.1.1 127.0.0.1 192.0.2.1 fe80::1]" {
		t.Errorf("Addresses = %s", want)
	}
	for _, pod := range []lb.Interface{
		with("veth12ab", true, "fe80::12ab/64"), with("cali12ab", true, "10.244.1.1/32", "fe80::ecee:eeff:feee:eeee/64"),
		with("lxc12ab", true, "169.254.1.1/32"),
	} {
		if got := fmt.Sprint(Addresses(append(slices.Clone(node), pod))); got != want {
			t.Errorf("with %s: %s", pod.Name, got)
		}
	}
}

func TestLooseARP(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		for _, tt := range []struct {
			ignore, link string
			want         bool
		}{{"0", "eth0", false}, {"0", "kube-ipvs0", true}, {"1", "kube-ipvs0", false}} {
			node.Sysctl("ipv4/conf/all/arp_ignore", tt.ignore)
			if got := LooseARP([]lb.Interface{{Name: tt.link}}); got != tt.want {
				t.Errorf("arp_ignore %s, link %s: %v, want %v", tt.ignore, tt.link, got, tt.want)
			}
		}
	})
}

// TestPrograms attaches real programs, which drop nothing, and finds them.
func TestPrograms(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", far, "eth0")
		nstest.Veth(t, node, "veth1", far, "pod")
		eth, pod := node.Link("eth0"), node.Link("veth1")
		if got := programs(eth); got != nil {
			t.Fatalf("without any: %v", got)
		}
		classifier := program(t, unix.BPF_PROG_TYPE_SCHED_CLS, 0)
		for _, l := range []netlink.Link{eth, pod} {
			qdisc := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index,
				Handle: netlink.MakeHandle(0xffff, 0),
				Parent: netlink.HANDLE_CLSACT}, QdiscType: "clsact"}
			if err := node.Netlink().QdiscAdd(qdisc); err != nil {
				t.Skipf("clsact: %v", err)
			}
			filter := &netlink.BpfFilter{
				FilterAttrs: netlink.FilterAttrs{
					LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL,
					Priority: 1,
				},
				Fd: classifier, Name: "from_netdev", DirectAction: true,
			}
			if err := node.Netlink().FilterAdd(filter); err != nil {
				t.Skipf("cls_bpf: %v", err)
			}
		}
		if got := fmt.Sprint(programs(eth)); got != "[tc from_netdev]" {
			t.Errorf("with a classifier: %s", got)
		}
		if got := programs(pod); got != nil {
			t.Errorf("of a pod's link: %v", got)
		}
		const pass = 2 // XDP_PASS
		must(t, netlink.LinkSetXdpFd(eth, program(t, unix.BPF_PROG_TYPE_XDP, pass)))
		if got := fmt.Sprint(programs(node.Link("eth0"))); got != "[XDP tc from_netdev]" {
			t.Errorf("with XDP too: %s", got)
		}
	})
}

// program loads the eBPF program "return value" (bpf(2)).
func program(t *testing.T, kind uint32, value int32) int {
	t.Helper()
	code := []struct {
		op, registers byte
		offset        int16
		value         int32
	}{{0xb7, 0, 0, value}, {0x95, 0, 0, 0}} // r0 = value; exit
	license := []byte("GPL\x00")
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&code[0])
	pin.Pin(&license[0])
	attr := struct {
		kind, count   uint32
		code, license uint64
		rest          [96]byte
	}{
		kind: kind, count: uint32(len(code)), code: uint64(uintptr(unsafe.Pointer(&code[0]))),
		license: uint64(uintptr(unsafe.Pointer(&license[0]))),
	}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_LOAD, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errors.Is(errno, unix.EPERM) || errors.Is(errno, unix.ENOSYS) {
		t.Skipf("load eBPF: %v", errno)
	}
	if errno != 0 {
		t.Fatalf("load eBPF: %v", errno)
	}
	t.Cleanup(func() { _ = unix.Close(int(fd)) })
	return int(fd)
}

// TestNeighbours: machines that answered lately and whose addresses are wanted, on links that announce.
func TestNeighbours(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", far, "eth0")
		nstest.Veth(t, node, "veth1", far, "pod")
		node.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64")
		node.AddAddress("veth1", "198.51.100.1/24")
		far.AddAddress("eth0", "192.0.2.9/24", "192.0.2.10/24", "2001:db8::9/64")
		far.AddAddress("pod", "198.51.100.9/24")
		m, _ := running(t)
		start(t, m)
		nstest.Until(t, within, "both links", func() bool { return find(m, "eth0").Usable() && find(m, "veth1").NoClients })
		unwanted := netip.MustParseAddr("192.0.2.10")
		neighbours := func() []lb.Neighbour {
			list, err := Neighbours(m.Links(), func(a netip.Addr) bool { return a != unwanted && !a.IsLinkLocalUnicast() })
			must(t, err)
			return list
		}
		silent := netip.MustParseAddr("192.0.2.77")
		must(t, node.Netlink().NeighSet(&netlink.Neigh{LinkIndex: node.Link("eth0").Attrs().Index, IP: silent.AsSlice(),
			State: netlink.NUD_INCOMPLETE}))
		if got := neighbours(); len(got) > 0 {
			t.Errorf("before anybody answered: %v", got)
		}
		for _, a := range []string{"192.0.2.9", "192.0.2.10", "2001:db8::9", "198.51.100.9"} {
			node.Output("ping", "-c", "1", "-W", "5", a)
		}
		mac := lb.MACFrom(far.MAC("eth0"))
		want := []lb.Neighbour{
			{Address: netip.MustParseAddr("192.0.2.9"), MAC: mac}, {Address: netip.MustParseAddr("2001:db8::9"), MAC: mac},
		}
		if got := neighbours(); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// TestAnswered: an entry of the neighbour table counts for ten minutes after the last answer.
func TestAnswered(t *testing.T) {
	minutes := func(n uint32) uint32 { return n * 60 * 100 }
	for _, tt := range []struct {
		state     int
		confirmed uint32
		want      bool
	}{
		{netlink.NUD_REACHABLE, 0, true},
		{netlink.NUD_STALE, minutes(9), true},
		{netlink.NUD_STALE, minutes(10), false},
		{netlink.NUD_FAILED, 0, false},
		{netlink.NUD_INCOMPLETE, 0, false},
		{netlink.NUD_PERMANENT, minutes(99), true},
		{netlink.NUD_NOARP, 0, false},
	} {
		if got := answered(netlink.Neigh{State: tt.state, Confirmed: tt.confirmed}); got != tt.want {
			t.Errorf("state %#x, confirmed %d ticks ago: %v, want %v", tt.state, tt.confirmed, got, tt.want)
		}
	}
}

// TestGateways: the router of each family with its MAC once the kernel knows it, and
// none where a link has no default route.
func TestGateways(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, router := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", router, "eth0")
		nstest.Veth(t, node, "eth1", router, "eth1")
		node.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64", "fe80::1/64")
		router.AddAddress("eth0", "192.0.2.254/24", "2001:db8::fe/64", "fe80::fe/64")
		node.Output("ip", "route", "add", "default", "via", "192.0.2.254")
		node.Output("ip", "-6", "route", "add", "default", "via", "fe80::fe", "dev", "eth0")
		eth0, eth1 := node.Link("eth0").Attrs().Index, node.Link("eth1").Attrs().Index
		v4, v6 := netip.MustParseAddr("192.0.2.254"), netip.MustParseAddr("fe80::fe")
		same := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
		if diff := cmp.Diff([]lb.Neighbour{{Address: v4}, {Address: v6}}, Gateways(eth0), same); diff != "" {
			t.Errorf("before anything was sent (-want +got):\n%s", diff)
		}
		mac := lb.MACFrom(router.MAC("eth0"))
		for _, addr := range []netip.Addr{v4, v6} {
			must(t, node.Netlink().NeighSet(&netlink.Neigh{
				LinkIndex: eth0, IP: addr.AsSlice(), HardwareAddr: mac.HardwareAddr(), State: netlink.NUD_STALE,
			}))
		}
		want := []lb.Neighbour{{Address: v4, MAC: mac}, {Address: v6, MAC: mac}}
		if diff := cmp.Diff(want, Gateways(eth0), same); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if got := Gateways(eth1); got != nil {
			t.Errorf("of a link without default route: %v", got)
		}
	})
}

// A router is heard on the links of its network and where the kernel's route to it leads, and nowhere else.
func TestToward(t *testing.T) {
	links := []lb.Interface{
		{Index: 1, Prefixes: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}},
		{Index: 2, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8"), netip.MustParsePrefix("2001:db8::1/64")}},
		{Index: 3, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.1/16")}},
		{Index: 4, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")}},
		{Index: 5}, // a pod's
		{Index: 6, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.9/32")}}, // a Service's address in mode IPVS
	}
	for _, tt := range []struct {
		to     string
		direct int
		want   []int
	}{
		{"10.2.0.9", 2, []int{2}}, {"10.1.0.9", 3, []int{3, 4}}, {"2001:db8::9", 0, []int{2}},
		{"192.0.2.9", 0, nil}, {"192.0.2.9", 7, []int{7}},
	} {
		if got := Toward(links, netip.MustParseAddr(tt.to), tt.direct); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.to, got, tt.want)
		}
	}
}

// The kernel's route counts if no router is on the way.
func TestDirect(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node := nstest.Self(t)
		nstest.Veth(t, node, "eth0", nstest.New(t), "eth0")
		node.AddAddress("eth0", "192.0.2.1/32", "2001:db8::1/128")
		eth0, lo := node.Link("eth0").Attrs().Index, node.Link("lo").Attrs().Index
		node.SetUp("lo")
		node.Output("ip", "route", "add", "192.0.2.9", "dev", "eth0")
		node.Output("ip", "route", "add", "198.51.100.0/24", "via", "192.0.2.9")
		node.Output("ip", "-6", "route", "add", "2001:db8::9", "dev", "eth0")
		for to, want := range map[string]int{
			"192.0.2.9": eth0, "2001:db8::9": eth0, "198.51.100.9": 0, "203.0.113.9": 0, "192.0.2.1": lo,
		} {
			if got := Direct(netip.MustParseAddr(to), netip.Addr{}); got != want {
				t.Errorf("%s: %d, want %d", to, got, want)
			}
		}
		if got := Direct(netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.1")); got != eth0 {
			t.Errorf("from its source: %d, want %d", got, eth0)
		}
	})
}

// Any link that is not a pod's by its name or prefix leads outside.
func TestOutside(t *testing.T) {
	links := []lb.Interface{
		{Index: 1, Name: "lo"}, {Index: 2, Name: "eth0"}, {Index: 3, Name: "cali12"}, {Index: 4, Name: "veth7"},
		{Index: 5, Name: "veth70"},
	}
	if got := Outside(links, []string{"cali*", "veth7"}); !slices.Equal(got, []int{1, 2, 5}) {
		t.Errorf("%v", got)
	}
}
