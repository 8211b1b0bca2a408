package layer2

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestAskersOfOthersAddresses: a node that announces nothing learns from a host's question for an address of another node,
// which is dead, that the host is there; not from one for an address that is nobody's.
func TestAskersOfOthersAddresses(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		l := newLAN(t)
		d := l.elsewhere()
		d.Owners = map[netip.Addr]string{v4: "other", v6: "other"}
		nstest.Until(t, within, "links known", func() bool { return len(l.first.links()) > 1 })
		l.first.Set(d)
		far := lb.MACFrom(l.far.MAC("eth0"))
		for _, tt := range []struct{ nobodys, dead, asker netip.Addr }{{foreign4, v4, asker4}, {foreign6, v6, asker6}} {
			knows := func() bool {
				return slices.Contains(l.first.Foreign("eth0", 8), lb.Question{Link: "eth0", MAC: far, Address: tt.asker})
			}
			for range 3 {
				l.far.Send(tt.nobodys)
			}
			if knows() {
				t.Errorf("%s is known before it asked for an address of ours", tt.asker)
			}
			nstest.Until(t, within, tt.asker.String()+" is known", func() bool { l.far.Send(tt.dead); return knows() })
		}
		// A card or a switch that knows groups passes IPv6 questions to those who joined.
		group, _ := solicitedNode(v6)
		member := func() bool {
			groups, err := readIGMP6()
			return err == nil && groups[membership{l.node.Link("eth0").Attrs().Index, group}]
		}
		nstest.Until(t, within, "in the group of the dead node's address", member)
		l.first.Set(l.elsewhere())
		nstest.Until(t, within, "not in it any more, once the address is gone", func() bool { return !member() })
	})
}
