package lab

import (
	"fmt"
	"net/netip"
	"slices"
)

// Names that are visible on the machine. Down removes what carries them.
const (
	netnsPrefix = "hflab-"
	switchNetns = netnsPrefix + "switch"
	mgmtLink    = "lab-mgmt"
	mgmtNumber  = 254
)

// Segments, which are also the names of the bridges.
const (
	segmentLAN    = "lan"
	segmentFabric = "fabric"
	segmentOuter  = "outer"
)

// Autonomous systems of the routers.
const (
	ASRouter1 = 64512
	ASRouter2 = 64513
)

// role is what a host does.
type role string

const (
	roleControlPlane role = "control-plane"
	roleWorker       role = "worker"
	roleRouter       role = "router"
	roleClient       role = "client"
)

// segment is one broadcast domain: a bridge and the prefixes spoken on it.
type segment struct {
	bridge, port string // port is the prefix of the names of its ports
	v4, v6       string // formats of an address, given the host's number
	mac          string
}

var segments = []segment{
	{bridge: segmentLAN, port: "lan-", v4: "172.30.0.%d/24", v6: "fd00:30::%d/64", mac: "02:00:00:00:00:%02x"},
	{bridge: segmentFabric, port: "fab-", v4: "172.31.0.%d/24", v6: "fd00:31::%d/64", mac: "02:00:00:00:01:%02x"},
	{bridge: segmentOuter, port: "out-", v4: "10.200.0.%d/24", v6: "fd00:200::%d/64", mac: "02:00:00:00:02:%02x"},
}

// leg is one cable of a host: a link in the host, a port of a bridge.
type leg struct {
	Link, Bridge, Port, MAC string
	V4, V6                  netip.Prefix
}

// host is one machine of the lab.
type host struct {
	Name   string
	Role   role
	Number int // last part of its addresses
	Legs   []leg
}

// isNode tells whether the host runs a kubelet.
func (h host) isNode() bool { return h.Role == roleControlPlane || h.Role == roleWorker }

func (h host) netns() string { return netnsPrefix + h.Name }

// leg returns the host's leg with the link's name.
func (h host) leg(link string) (leg, error) {
	i := slices.IndexFunc(h.Legs, func(l leg) bool { return l.Link == link })
	if i < 0 {
		return leg{}, fmt.Errorf("unknown link %q of host %s", link, h.Name)
	}
	return h.Legs[i], nil
}

// only returns the host with one of its legs, by the link's name; no name leaves all.
func (h host) only(link string) (host, error) {
	if link == "" {
		return h, nil
	}
	l, err := h.leg(link)
	h.Legs = []leg{l}
	return h, err
}

// pods returns the two pod prefixes of a node.
func (h host) pods() (v4, v6 netip.Prefix) {
	return netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", h.Number)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:244:0:%d::/64", h.Number))
}

// newLeg cables host number n to the bridge. IPv6 addresses repeat the decimal
// digits of the number, so that both families read alike.
func newLeg(link, bridge, name string, n int) leg {
	i := slices.IndexFunc(segments, func(s segment) bool { return s.bridge == bridge })
	s := segments[i]
	return leg{
		Link: link, Bridge: bridge, Port: s.port + name,
		MAC: fmt.Sprintf(s.mac, n),
		V4:  netip.MustParsePrefix(fmt.Sprintf(s.v4, n)),
		V6:  netip.MustParsePrefix(fmt.Sprintf(s.v6, n)),
	}
}

// plan returns all hosts of a lab.
func plan(c Config) []host {
	node := func(name string, r role, n int) host {
		return host{Name: name, Role: r, Number: n, Legs: []leg{
			newLeg("eth0", segmentLAN, name, n), newLeg("eth1", segmentFabric, name, n),
		}}
	}
	router := func(name string, n int) host {
		return host{Name: name, Role: roleRouter, Number: n, Legs: []leg{
			newLeg("eth0", segmentFabric, name, n), newLeg("eth1", segmentOuter, name, n),
		}}
	}
	hosts := []host{node("cp", roleControlPlane, 10)}
	for i := 1; i <= c.Workers; i++ {
		hosts = append(hosts, node(fmt.Sprintf("w%d", i), roleWorker, 10+i))
	}
	return append(hosts, router("r1", 1), router("r2", 2),
		host{Name: "client", Role: roleClient, Number: 100, Legs: []leg{newLeg("eth0", segmentLAN, "client", 100)}},
		host{Name: "far", Role: roleClient, Number: 100, Legs: []leg{newLeg("eth0", segmentOuter, "far", 100)}})
}

// nodes returns the hosts that run a kubelet.
func nodes(hosts []host) []host {
	return slices.DeleteFunc(slices.Clone(hosts), func(h host) bool { return !h.isNode() })
}

// findHost returns the host of that name.
func findHost(hosts []host, name string) (host, error) {
	i := slices.IndexFunc(hosts, func(h host) bool { return h.Name == name })
	if i < 0 {
		return host{}, fmt.Errorf("unknown host %q", name)
	}
	return hosts[i], nil
}
