package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

// Names that are visible on the machine. Down removes what carries them.
const (
	netnsPrefix = "hflab-"
	switchNetns = netnsPrefix + "switch"
	mgmtLink    = "lab-mgmt"
	mgmtNumber  = 254
)

func netnsName(h wire.Host) string { return netnsPrefix + h.Name }

// plan returns all hosts of a lab.
func plan(c Config) wire.Plan {
	nodes := []string{"cp"}
	for i := 1; i <= c.Workers; i++ {
		nodes = append(nodes, fmt.Sprintf("w%d", i))
	}
	return wire.NewPlan(nodes...)
}

// sysctls of the switch: its ports are bridge ports and need no address.
var switchSysctls = []wire.Sysctl{
	{Path: "net/ipv6/conf/all/disable_ipv6", Value: "1"}, {Path: "net/ipv6/conf/default/disable_ipv6", Value: "1"},
	// What the switch answers for (AnswerFor), it answers with the MAC of that link only.
	{Path: "net/ipv4/conf/all/arp_ignore", Value: "1"},
}

// switchBatch renders the bridges and the management port, as input of ip -batch.
func switchBatch(mgmtPID int) string {
	var b strings.Builder
	for _, s := range wire.Segments {
		// Snooping without a querier forgets silent IPv6 neighbours.
		fmt.Fprintf(&b, "link add %s type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n", s.Bridge)
		fmt.Fprintf(&b, "link set %s up\n", s.Bridge)
	}
	port := wire.NewLeg(mgmtLink, wire.LAN, "mgmt", mgmtNumber).Port
	fmt.Fprintf(&b, "link add %s type veth peer name %s netns %d\n", port, mgmtLink, mgmtPID)
	fmt.Fprintf(&b, "link set %s master %s up\n", port, wire.LAN)
	return b.String()
}

// mgmtBatch renders the addresses of the machine's own leg.
func mgmtBatch() string {
	l := wire.NewLeg(mgmtLink, wire.LAN, "mgmt", mgmtNumber)
	return linkBatch(l)
}

// cableBatch renders, for the switch, the cables of one host. The MAC is fixed
// so that a host that was powered off comes back as the same neighbour.
func cableBatch(h wire.Host) string {
	var b strings.Builder
	for _, l := range h.Legs {
		fmt.Fprintf(&b, "link add %s type veth peer name %s address %s netns %s\n", l.Port, l.Link, l.MAC, netnsName(h))
		fmt.Fprintf(&b, "link set %s master %s up\n", l.Port, l.Bridge)
	}
	return b.String()
}

func linkBatch(l wire.Leg) string {
	return fmt.Sprintf(
		"link set %[1]s up\naddress add %[2]s dev %[1]s\naddress add %[3]s dev %[1]s nodad\n",
		l.Link,
		l.V4,
		l.V6,
	)
}

// hostBatch renders addresses and routes inside one host, with routes to the pods of other nodes if the lab makes
// these.
func hostBatch(h wire.Host, all wire.Plan, podRoutes bool) string {
	var b strings.Builder
	b.WriteString("link set lo up\n")
	for _, l := range h.Legs {
		b.WriteString(linkBatch(l))
	}
	switch {
	case h.IsNode():
		for _, other := range all.Nodes() {
			if other.Name == h.Name || !podRoutes {
				continue
			}
			v4, v6 := other.Pods()
			fmt.Fprintf(&b, "route add %s via %s\n", v4, other.Legs[0].V4.Addr())
			fmt.Fprintf(&b, "route add %s via %s\n", v6, other.Legs[0].V6.Addr())
		}
		// Both routers, so that answers find their way back to the far side
		// whichever router brought the request.
		b.WriteString(
			defaultRoute(h.Legs[1].Link, fabricRouters(all, func(l wire.Leg) netip.Addr { return l.V4.Addr() })),
		)
		b.WriteString(
			defaultRoute(h.Legs[1].Link, fabricRouters(all, func(l wire.Leg) netip.Addr { return l.V6.Addr() })),
		)
	case h.Role == wire.Client && h.Legs[0].Bridge == wire.Outer:
		r1 := wire.NewLeg("", wire.Outer, "", 1)
		b.WriteString(defaultRoute(h.Legs[0].Link, []netip.Addr{r1.V4.Addr()}))
		b.WriteString(defaultRoute(h.Legs[0].Link, []netip.Addr{r1.V6.Addr()}))
	}
	return b.String()
}

func fabricRouters(all wire.Plan, addr func(wire.Leg) netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, h := range all {
		if h.Role == wire.Router {
			out = append(out, addr(h.Legs[0]))
		}
	}
	return out
}

func defaultRoute(link string, via []netip.Addr) string {
	dst := "0.0.0.0/0"
	if via[0].Is6() {
		dst = "::/0"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "route add %s", dst)
	for _, a := range via {
		if len(via) > 1 {
			b.WriteString(" nexthop")
		}
		fmt.Fprintf(&b, " via %s dev %s", a, link)
	}
	return b.String() + "\n"
}

// makeSwitch creates the bridges and the machine's leg.
func makeSwitch(ctx context.Context) error {
	if err := enterNetnsDir(); err != nil {
		return err
	}
	if err := newNetns(ctx, switchNetns, switchSysctls); err != nil {
		return err
	}
	if err := ipBatch(ctx, switchNetns, switchBatch(os.Getpid())); err != nil {
		return fmt.Errorf("make switch: %w", err)
	}
	if err := ipBatch(ctx, "", mgmtBatch()); err != nil {
		return fmt.Errorf("make management link: %w", err)
	}
	return nil
}

// plugIn creates the host's network namespace, cables it and addresses it.
func plugIn(ctx context.Context, h wire.Host, all wire.Plan, podRoutes bool) error {
	if err := newNetns(ctx, netnsName(h), wire.Sysctls(h)); err != nil {
		return err
	}
	if err := ipBatch(ctx, switchNetns, cableBatch(h)); err != nil {
		return fmt.Errorf("cable host %s: %w", h.Name, err)
	}
	if err := ipBatch(ctx, netnsName(h), hostBatch(h, all, podRoutes)); err != nil {
		return fmt.Errorf("address host %s: %w", h.Name, err)
	}
	return nil
}

// unplug removes the host's cables and its network namespace.
func unplug(ctx context.Context, h wire.Host) error {
	var b strings.Builder
	for _, l := range h.Legs {
		fmt.Fprintf(&b, "link delete %s\n", l.Port)
	}
	if err := ipBatch(ctx, switchNetns, b.String()); err != nil {
		return fmt.Errorf("unplug host %s: %w", h.Name, err)
	}
	return deleteNetns(netnsName(h))
}
