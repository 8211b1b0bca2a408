package kind

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

// network is the name of a segment's Docker network, bridge the name of its bridge.
func network(segment string) string { return prefix + "-" + segment }
func bridge(segment string) string  { return "hf-" + segment }

// newPlan plans the hosts of a cluster with these nodes. Ports are numbered: kind's names are too long for links.
func newPlan(nodes []string) wire.Plan {
	plan := wire.NewPlan(nodes...)
	for _, h := range plan {
		for i := range h.Legs {
			h.Legs[i].Port = fmt.Sprintf("hf-%s-%d", h.Legs[i].Bridge, h.Number)
		}
	}
	return plan
}

// makeNetworks makes the segments. Docker addresses the nodes on the LAN only, from a range beside all other hosts.
func makeNetworks(ctx context.Context) error {
	for _, s := range wire.Segments {
		lowest := wire.NewLeg("", s.Bridge, "", 8)
		gateway := wire.NewLeg("", s.Bridge, "", 254)
		v4, v6 := gateway.V4, gateway.V6
		_, err := docker(
			ctx,
			nil,
			"network",
			"create",
			"--driver",
			"bridge",
			"--label",
			label,
			"--ipv6",
			"--subnet",
			v4.Masked().String(),
			"--gateway",
			v4.Addr().String(),
			"--ip-range",
			netip.PrefixFrom(lowest.V4.Addr(), 29).String(),
			"--subnet",
			v6.Masked().String(),
			"--gateway",
			v6.Addr().String(),
			"--opt",
			"com.docker.network.bridge.name="+bridge(s.Bridge),
			"--opt",
			"com.docker.network.bridge.enable_ip_masquerade=false",
			network(s.Bridge),
		)
		if err != nil {
			return err
		}
		// Snooping without a querier forgets silent IPv6 neighbours.
		if _, err := local(ctx, "", "ip", "link", "set", bridge(s.Bridge), "type", "bridge", "mcast_snooping",
			"0"); err != nil {
			return err
		}
	}
	return nil
}

// removeNetworks removes the segments that are there.
func removeNetworks(ctx context.Context) error {
	out, err := docker(ctx, nil, "network", "ls", "--quiet", "--filter", "label="+label)
	if err != nil || out == "" {
		return err
	}
	_, err = docker(ctx, nil, append([]string{"network", "rm"}, strings.Fields(out)...)...)
	return err
}

// addressNodes gives each node for good the addresses that Docker chose on the LAN, so that it has them again after a
// power-off, and fills them into the plan.
func (c *Cluster) addressNodes(ctx context.Context) error {
	for i, h := range c.Plan.Nodes() {
		out, err := docker(
			ctx,
			nil,
			"inspect",
			"--format",
			"{{json (index .NetworkSettings.Networks \""+network(wire.LAN)+"\")}}",
			container(h),
		)
		if err != nil {
			return err
		}
		var end struct {
			IPAddress, GlobalIPv6Address, MacAddress string
			IPPrefixLen, GlobalIPv6PrefixLen         int
		}
		if err := json.Unmarshal([]byte(out), &end); err != nil {
			return fmt.Errorf("read addresses of %s: %w", h.Name, err)
		}
		leg := &c.Plan[i].Legs[0]
		leg.MAC = end.MacAddress
		for _, a := range []struct {
			text string
			bits int
			into *netip.Prefix
		}{{end.IPAddress, end.IPPrefixLen, &leg.V4}, {end.GlobalIPv6Address, end.GlobalIPv6PrefixLen, &leg.V6}} {
			addr, err := netip.ParseAddr(a.text)
			if err != nil {
				return fmt.Errorf("read addresses of %s: %w", h.Name, err)
			}
			*a.into = netip.PrefixFrom(addr, a.bits)
		}
		if _, err := docker(ctx, nil, "network", "disconnect", network(wire.LAN), container(h)); err != nil {
			return err
		}
		if _, err := docker(ctx, nil, "network", "connect", "--ip", end.IPAddress, "--ip6", end.GlobalIPv6Address,
			network(wire.LAN), container(h)); err != nil {
			return err
		}
		// A link that is connected again has a new name until the next start.
		gateway := wire.NewLeg("", wire.LAN, "", 254)
		if _, err := c.on(ctx, h, rename, "sh", "-se", leg.Link, leg.V4.Addr().String(), leg.V6.String(),
			gateway.V4.Addr().String(),
			gateway.V6.Addr().String()); err != nil {
			return fmt.Errorf("name the link of %s: %w", h.Name, err)
		}
	}
	return nil
}

// rename names the link with an IPv4 address. Linux before 6.2 does that to a link that is down only, which costs the
// link its IPv6 addresses and its routes.
const rename = `link=$(ip -o -4 addr show to "$2" | awk '{print $2}')
[ "$link" != "$1" ] || exit 0
ip link set "$link" name "$1" 2>/dev/null && exit 0
ip link set "$link" down
ip link set "$link" name "$1"
ip link set "$1" up
ip addr replace "$3" dev "$1" nodad
ip route replace default via "$4"
ip -6 route replace default via "$5"
`

// plugNode names the port that Docker made for a node, cables the node's other link and sets its routes: all that a
// node lacks after kind or docker start have started it.
func (c *Cluster) plugNode(ctx context.Context, h wire.Host) error {
	pid, err := c.pid(ctx, h)
	if err != nil {
		return err
	}
	if err := c.namePort(ctx, h); err != nil {
		return err
	}
	if err := c.sysctls(ctx, h); err != nil {
		return err
	}
	fabric := h.Legs[1]
	if err := cable(ctx, fabric, pid); err != nil {
		return err
	}
	batch := linkBatch(fabric)
	for _, other := range c.Plan.Nodes() {
		if other.Name != h.Name {
			pods := c.Pods[other.Name]
			batch += fmt.Sprintf(
				"route replace %s via %s\nroute replace %s via %s\n",
				pods[0],
				other.Legs[0].V4.Addr(),
				pods[1],
				other.Legs[0].V6.Addr(),
			)
		}
	}
	// Back to the far side by both routers, whichever brought the request.
	far, err := c.Plan.Find("far")
	if err != nil {
		return err
	}
	ofIPv4 := func(l wire.Leg) netip.Prefix { return l.V4 }
	ofIPv6 := func(l wire.Leg) netip.Prefix { return l.V6 }
	for _, family := range []func(wire.Leg) netip.Prefix{ofIPv4, ofIPv6} {
		batch += "route replace " + family(far.Legs[0]).Masked().String()
		for _, r := range c.Plan {
			if r.Role == wire.Router {
				batch += fmt.Sprintf(" nexthop via %s dev %s", family(r.Legs[0]).Addr(), fabric.Link)
			}
		}
		batch += "\n"
	}
	if _, err := c.on(ctx, h, batch, "ip", "-batch", "-"); err != nil {
		return fmt.Errorf("address host %s: %w", h.Name, err)
	}
	// Docker's name server does not survive a flush of the node's nftables rules, which a test does.
	cp := c.Plan[0]
	_, err = c.on(ctx, h, fmt.Sprintf("%s %s\n", cp.Legs[0].V4.Addr(), cp.Name), "tee", "-a", "/etc/hosts")
	return err
}

// namePort gives the port of a node's first link its name in the plan: rules about it then outlive a power cycle.
func (c *Cluster) namePort(ctx context.Context, h wire.Host) error {
	index, err := c.on(ctx, h, "", "cat", "/sys/class/net/"+h.Legs[0].Link+"/iflink")
	if err != nil {
		return err
	}
	out, err := local(ctx, "", "ip", "-json", "link", "show")
	if err != nil {
		return err
	}
	var links []struct {
		Index int    `json:"ifindex"`
		Name  string `json:"ifname"`
	}
	if err := json.Unmarshal([]byte(out), &links); err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	port := h.Legs[0].Port
	for _, l := range links {
		switch {
		case fmt.Sprint(l.Index) != index:
		case l.Name == port:
			return nil
		default:
			removePort(ctx, port)
			_, err := local(
				ctx,
				fmt.Sprintf("link set %[1]s down\nlink set %[1]s name %[2]s\nlink set %[2]s up\n", l.Name, port),
				"ip",
				"-batch",
				"-",
			)
			return err
		}
	}
	return fmt.Errorf("find the port of %s: no link %s", h.Name, index)
}

// removePort removes what may be left of a host that was powered off: the kernel takes its time to remove a namespace.
func removePort(ctx context.Context, port string) {
	_, _ = local(ctx, "", "ip", "link", "delete", port)
}

// cable makes a link of a host and its port, in the network namespace of a process.
func cable(ctx context.Context, l wire.Leg, pid int) error {
	removePort(ctx, l.Port)
	batch := fmt.Sprintf(
		"link add %s type veth peer name %s address %s netns %d\nlink set %s master %s up\n",
		l.Port,
		l.Link,
		l.MAC,
		pid,
		l.Port,
		bridge(l.Bridge),
	)
	if _, err := local(ctx, batch, "ip", "-batch", "-"); err != nil {
		return fmt.Errorf("cable %s: %w", l.Port, err)
	}
	return nil
}

func linkBatch(l wire.Leg) string {
	return fmt.Sprintf(
		"link set %[1]s up\naddress add %[2]s dev %[1]s\naddress add %[3]s dev %[1]s nodad\n",
		l.Link,
		l.V4,
		l.V6,
	)
}

// sysctls sets the sysctls of a host's network.
func (c *Cluster) sysctls(ctx context.Context, h wire.Host) error {
	var b strings.Builder
	// Docker disables IPv6 in a network namespace until a network of it has IPv6.
	list := append(
		[]wire.Sysctl{
			{Path: "net/ipv6/conf/all/disable_ipv6", Value: "0"},
			{Path: "net/ipv6/conf/default/disable_ipv6", Value: "0"},
		},
		wire.Sysctls(h)...)
	for _, s := range list {
		fmt.Fprintf(&b, "echo %s >/proc/sys/%s\n", s.Value, s.Path)
		// A link that is there already has not inherited it.
		if first := strings.Replace(s.Path, "/default/", "/"+h.Legs[0].Link+"/", 1); h.IsNode() && first != s.Path {
			fmt.Fprintf(&b, "echo %s >/proc/sys/%s\n", s.Value, first)
		}
	}
	_, err := c.on(ctx, h, b.String(), "sh", "-e")
	return err
}
