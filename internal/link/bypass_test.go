package link

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
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
		{[]lb.Interface{eth, {Name: "cilium_host"}}, "Cilium (link cilium_host)"},
		{[]lb.Interface{run, {Name: "bpfin.cali"}}, "eBPF on eth0 (XDP, tc cil_from_netdev), Calico's eBPF data plane (link bpfin.cali)"},
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
			qdisc := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0),
				Parent: netlink.HANDLE_CLSACT}, QdiscType: "clsact"}
			if err := node.Netlink().QdiscAdd(qdisc); err != nil {
				t.Skipf("clsact: %v", err)
			}
			filter := &netlink.BpfFilter{
				FilterAttrs: netlink.FilterAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
				Fd:          classifier, Name: "from_netdev", DirectAction: true,
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
		if err := netlink.LinkSetXdpFd(eth, program(t, unix.BPF_PROG_TYPE_XDP, pass)); err != nil {
			t.Fatal(err)
		}
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
	}{kind: kind, count: uint32(len(code)), code: uint64(uintptr(unsafe.Pointer(&code[0]))), license: uint64(uintptr(unsafe.Pointer(&license[0])))}
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
