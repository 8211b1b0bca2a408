package link

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestMember: the active member is found of a bond, of its VLANs and of its bridge; a bond that uses all members has none.
func TestMember(t *testing.T) {
	bond := func(index, master, active int) netlink.Link {
		b := netlink.NewLinkBond(netlink.LinkAttrs{Index: index, MasterIndex: master})
		b.ActiveSlave = active
		return b
	}
	devices := []netlink.Link{
		&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Index: 3, ParentIndex: 4}}, // of the bridge
		&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Index: 4}},
		bond(5, 4, 12), bond(6, 0, 13), bond(7, 0, -1),
		&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Index: 8, ParentIndex: 6}},
		&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: 9, ParentIndex: 6}}, // whose peer has this index elsewhere
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 12, MasterIndex: 5}},
	}
	want := map[int]int{3: 12, 4: 12, 5: 12, 6: 13, 8: 13}
	for _, l := range convert(devices, nil, nil) {
		if l.Member != want[l.Index] {
			t.Errorf("link %d has the member %d, want %d", l.Index, l.Member, want[l.Index])
		}
	}
}

// TestBondFailsOver: the Monitor follows the active member of a bond.
func TestBondFailsOver(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		node, far := nstest.Self(t), nstest.New(t)
		nstest.Veth(t, node, "eth0", far, "eth0")
		nstest.Veth(t, node, "eth1", far, "eth1")
		ip := func(words string) (string, error) {
			out, err := node.Command("ip", strings.Fields(words)...).CombinedOutput()
			return words + ": " + string(out), err
		}
		if out, err := ip("link add bond0 type bond mode active-backup"); err != nil {
			t.Skipf("the kernel has no bonds: %s", out)
		}
		for _, words := range []string{
			"link set eth0 down", "link set eth1 down", "link set eth0 master bond0", "link set eth1 master bond0",
			"link set bond0 up", "link set eth0 up", "link set eth1 up",
		} {
			if out, err := ip(words); err != nil {
				t.Fatal(out)
			}
		}
		m, _ := running(t)
		start(t, m)
		for _, name := range []string{"eth1", "eth0", "eth1"} {
			if out, err := ip("link set bond0 type bond active_slave " + name); err != nil {
				t.Fatal(out)
			}
			nstest.Until(t, within, name+" is active", func() bool { return find(m, "bond0").Member == find(m, name).Index })
		}
	})
}
