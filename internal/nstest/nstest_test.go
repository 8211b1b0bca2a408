package nstest

import (
	"cmp"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

// Two hosts on a bridge in a third namespace resolve each other, in both families.
func TestFarHost(t *testing.T) {
	Run(t, func(t *testing.T) {
		node, lan, far := Self(t), New(t), New(t)
		Veth(t, node, "eth0", lan, "port0")
		Veth(t, far, "eth0", lan, "port1")
		lan.Bridge("br0", "port0", "port1")
		node.AddAddress("eth0", "192.0.2.1/24", "2001:db8::1/64")
		far.AddAddress("eth0", "192.0.2.2/24", "2001:db8::2/64")

		for _, a := range []string{"192.0.2.1", "2001:db8::1"} {
			addr := netip.MustParseAddr(a)
			Until(t, 5*time.Second, "far host resolves "+a, func() bool {
				far.Send(addr)
				state, mac := far.Neighbor("eth0", addr)
				return state&Valid != 0 && mac.String() == node.MAC("eth0").String()
			})
		}
		if got := far.Output("ip", "-o", "link"); strings.Contains(got, "br0") || !strings.Contains(got, "eth0") {
			t.Errorf("the far host's command sees\n%s", got)
		}
		far.Sysctl("ipv4/ip_forward", "1")
	})
}

// The child is in namespaces of its own, and only the named test runs in it.
func TestRun(t *testing.T) {
	outside, err := os.Readlink(threadNS)
	must(t, "read own namespace", err)
	t.Setenv("OUTSIDE_"+childEnv, cmp.Or(os.Getenv("OUTSIDE_"+childEnv), outside))
	for _, name := range []string{"first", "second, (odd) name"} {
		t.Run(name, func(t *testing.T) {
			Run(t, func(t *testing.T) {
				inside, err := os.Readlink(threadNS)
				must(t, "read own namespace", err)
				if inside == os.Getenv("OUTSIDE_"+childEnv) {
					t.Error("the test runs in the namespace it was started from")
				}
				if os.Getpid() != 1 {
					t.Errorf("PID is %d, not 1 of a PID namespace", os.Getpid())
				}
			})
		})
	}
}
