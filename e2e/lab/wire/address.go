package wire

import (
	"fmt"
	"net/netip"
	"slices"
)

// Segments, which are also the names of the bridges.
const (
	LAN    = "lan"
	Fabric = "fabric"
	Outer  = "outer"
)

// Autonomous systems of the routers.
const (
	ASRouter1 = 64512
	ASRouter2 = 64513
)

// Role is what a host does.
type Role string

// Roles of hosts.
const (
	ControlPlane Role = "control-plane"
	Worker       Role = "worker"
	Router       Role = "router"
	Client       Role = "client"
)

// Segment is one broadcast domain: a bridge and the prefixes spoken on it.
type Segment struct {
	Bridge, port string // port is the prefix of the names of its ports
	v4, v6       string // formats of an address, given the host's number
	mac          string
}

// Segments are all of the plan.
var Segments = []Segment{
	{Bridge: LAN, port: "lan-", v4: "172.30.0.%d/24", v6: "fd00:30::%d/64", mac: "02:00:00:00:00:%02x"},
	{Bridge: Fabric, port: "fab-", v4: "172.31.0.%d/24", v6: "fd00:31::%d/64", mac: "02:00:00:00:01:%02x"},
	{Bridge: Outer, port: "out-", v4: "10.200.0.%d/24", v6: "fd00:200::%d/64", mac: "02:00:00:00:02:%02x"},
}

// Leg is one cable of a host: a link in the host, a port of a bridge.
type Leg struct {
	Link, Bridge, Port, MAC string
	V4, V6                  netip.Prefix
}

// Host is one machine.
type Host struct {
	Name   string
	Role   Role
	Number int // last part of its addresses
	Legs   []Leg
}

// IsNode tells whether the host runs a kubelet.
func (h Host) IsNode() bool { return h.Role == ControlPlane || h.Role == Worker }

// Leg returns the host's leg with the link's name.
func (h Host) Leg(link string) (Leg, error) {
	i := slices.IndexFunc(h.Legs, func(l Leg) bool { return l.Link == link })
	if i < 0 {
		return Leg{}, fmt.Errorf("unknown link %q of host %s", link, h.Name)
	}
	return h.Legs[i], nil
}

// only returns the host with one of its legs, by the link's name; no name leaves all.
func (h Host) only(link string) (Host, error) {
	if link == "" {
		return h, nil
	}
	l, err := h.Leg(link)
	h.Legs = []Leg{l}
	return h, err
}

// Pods returns the two pod prefixes of a node.
func (h Host) Pods() (v4, v6 netip.Prefix) {
	return netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", h.Number)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:244:0:%d::/64", h.Number))
}

// NewLeg cables host number n to the bridge. IPv6 addresses repeat the decimal
// digits of the number, so that both families read alike.
func NewLeg(link, bridge, name string, n int) Leg {
	i := slices.IndexFunc(Segments, func(s Segment) bool { return s.Bridge == bridge })
	s := Segments[i]
	return Leg{
		Link: link, Bridge: bridge, Port: s.port + name,
		MAC: fmt.Sprintf(s.mac, n),
		V4:  netip.MustParsePrefix(fmt.Sprintf(s.v4, n)),
		V6:  netip.MustParsePrefix(fmt.Sprintf(s.v6, n)),
	}
}

// Plan is all hosts, the control plane first.
type Plan []Host

// NewPlan returns the hosts of a network with nodes of these names, the control plane's first.
func NewPlan(nodes ...string) Plan {
	router := func(name string, n int) Host {
		return Host{Name: name, Role: Router, Number: n, Legs: []Leg{
			NewLeg("eth0", Fabric, name, n), NewLeg("eth1", Outer, name, n),
		}}
	}
	var p Plan
	for i, name := range nodes {
		role, n := Worker, 10+i
		if i == 0 {
			role = ControlPlane
		}
		p = append(p, Host{Name: name, Role: role, Number: n, Legs: []Leg{
			NewLeg("eth0", LAN, name, n), NewLeg("eth1", Fabric, name, n),
		}})
	}
	return append(p, router("r1", 1), router("r2", 2),
		Host{Name: "client", Role: Client, Number: 100, Legs: []Leg{NewLeg("eth0", LAN, "client", 100)}},
		Host{Name: "far", Role: Client, Number: 100, Legs: []Leg{NewLeg("eth0", Outer, "far", 100)}})
}

// Nodes returns the hosts that run a kubelet.
func (p Plan) Nodes() Plan {
	return slices.DeleteFunc(slices.Clone(p), func(h Host) bool { return !h.IsNode() })
}

// Names returns the names of the hosts.
func (p Plan) Names() []string {
	var out []string
	for _, h := range p {
		out = append(out, h.Name)
	}
	return out
}

// Find returns the host of that name.
func (p Plan) Find(name string) (Host, error) {
	i := slices.IndexFunc(p, func(h Host) bool { return h.Name == name })
	if i < 0 {
		return Host{}, fmt.Errorf("unknown host %q", name)
	}
	return p[i], nil
}

// find returns hosts by name.
func (p Plan) find(names []string) (Plan, error) {
	var out Plan
	for _, name := range names {
		h, err := p.Find(name)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(out, func(o Host) bool { return o.Name == name }) {
			return nil, fmt.Errorf("host %q is named twice", name)
		}
		out = append(out, h)
	}
	return out, nil
}
