package kubeproxy

import (
	"net"
	"net/netip"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// fill makes entries of answered connections, which no sweep concerns, and returns how many the kernel took.
func fill(tb testing.TB, entries int) int {
	tb.Helper()
	server := net.IPv4(198, 51, 100, 1).To4()
	for i := range entries {
		client := net.IPv4(10, byte(i>>16), byte(i>>8), byte(i)).To4()
		flow := &netlink.ConntrackFlow{
			FamilyType: unix.AF_INET, TimeOut: 3600, ProtoInfo: &netlink.ProtoInfoTCP{State: 3}, // established
			Forward: netlink.IPTuple{SrcIP: client, DstIP: server, SrcPort: 1024, DstPort: 80, Protocol: unix.IPPROTO_TCP},
			Reverse: netlink.IPTuple{SrcIP: server, DstIP: client, SrcPort: 80, DstPort: 1024, Protocol: unix.IPPROTO_TCP},
		}
		if err := netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, flow); err != nil {
			tb.Logf("the kernel takes no more: %v", err)
			return i
		}
	}
	return entries
}

// lostOne is a pod of both families.
var lostOne = map[netip.Addr]bool{netip.MustParseAddr("192.0.2.4"): true, netip.MustParseAddr("2001:db8::4"): true}

func forgetNothing(tb testing.TB) {
	if n, err := forgetAttempts(lostOne); n != 0 || err != nil {
		tb.Errorf("%d entries deleted, error %v", n, err)
	}
}

// The cost of a sweep does not grow with the table: the kernel shows only what waits.
func TestForgetInALargeTable(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		few := testing.AllocsPerRun(5, func() { forgetNothing(t) })
		if n := fill(t, 5000); n < 5000 {
			t.Skipf("only %d entries fit", n)
		}
		many := testing.AllocsPerRun(5, func() { forgetNothing(t) })
		t.Logf("%.0f allocations, %.0f with an empty table", many, few)
		if many > 2*few {
			t.Errorf("%.0f allocations, and %.0f in an empty table", many, few)
		}
	})
}
