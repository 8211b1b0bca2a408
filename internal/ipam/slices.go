package ipam

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// SliceRest is the time for which ports rest once the last pod that sent from them is gone. Servers remember a closed
// connection for 4 minutes (twice the maximum segment lifetime, RFC 9293 section 3.4.2), and the kernel of the node for
// 2 or 3: nf_conntrack_tcp_timeout_time_wait, nf_conntrack_udp_timeout_stream. A new connection with the same ports
// would meet the old one there.
const SliceRest = 5 * time.Minute

// blocks is the number of slices that the ports of an address can be cut into. The first has the ports below 1024, and
// is never given.
const blocks = 1 << 16 / lb.SlicePorts

// SliceUser is the pods of a namespace on a node that send from an address. Pods of two namespaces share no slice.
type SliceUser struct {
	Namespace string
	Node      string
}

// compare orders users by node, then by namespace.
func (u SliceUser) compare(o SliceUser) int {
	return cmp.Or(
		cmp.Compare(u.Node, o.Node),
		cmp.Compare(u.Namespace, o.Namespace),
	)
}

// EgressAddress is an address that Services hold whose pods send from it.
type EgressAddress struct {
	Address netip.Addr
	// Ports are the ports that all holders of the address declare.
	Ports []lb.Port
	// Users need a slice each.
	Users []SliceUser
}

// SliceResult is the decision for all slices.
type SliceResult struct {
	// Slices are the slices to record, ordered by address and port.
	Slices []lb.PortSlice
	// Refused are the users that get no slice.
	Refused []SliceRefusal
	// Recheck is the time at which the next slice has rested; zero if none rests.
	Recheck time.Time
}

// SliceRefusal is a user that gets no slice of an address.
type SliceRefusal struct {
	Address netip.Addr
	User    SliceUser
	// Message explains the refusal to the owner of the Service.
	Message string
}

// AssignSlices decides which user has which slice of the ports of each address. present are the recorded slices, and at
// is the time of the decision.
//
//   - A user keeps its slice as long as it needs one, and takes it back as long as the slice rests.
//   - A slice without its user rests for SliceRest. No other user gets it before that, even if the address has another
//     holder by then.
//   - A user gets no slice in which a holder of the address declares a port.
func AssignSlices(addresses []EgressAddress, present []lb.PortSlice, at time.Time) SliceResult {
	deciders := map[netip.Addr]*sliceDecider{}
	decider := func(a netip.Addr) *sliceDecider {
		d := deciders[a]
		if d == nil {
			d = &sliceDecider{
				at:      at,
				address: a,
				users:   map[SliceUser]bool{},
			}
			deciders[a] = d
		}

		return d
	}

	for _, a := range addresses {
		d := decider(a.Address)
		d.ports = append(d.ports, a.Ports...)
		for _, u := range a.Users {
			d.users[u] = true
		}
	}

	for _, s := range present {
		d := decider(s.Address)
		d.blocks[s.First/lb.SlicePorts] = s
	}

	var r SliceResult
	for _, a := range slices.SortedFunc(maps.Keys(deciders), netip.Addr.Compare) {
		deciders[a].decide(&r)
	}

	return r
}

// sliceDecider decides about one address.
type sliceDecider struct {
	at      time.Time
	address netip.Addr
	ports   []lb.Port
	// users are the users that need a slice and have none yet.
	users map[SliceUser]bool
	// blocks are the slices, each at its place. A free one has no node.
	blocks [blocks]lb.PortSlice
}

// decide adds the decision to r.
func (d *sliceDecider) decide(r *SliceResult) {
	d.keep()
	d.takeBack()
	d.free()
	d.assign(r)

	for _, s := range d.blocks {
		if s.Node == "" {
			continue
		}

		r.Slices = append(r.Slices, s)
		if !s.Released.IsZero() {
			r.Recheck = lb.Sooner(r.Recheck, s.Released.Add(SliceRest))
		}
	}
}

// keep lets users keep their slices, and releases the others.
func (d *sliceDecider) keep() {
	for i := range d.blocks {
		s := &d.blocks[i]
		if s.Node == "" || !s.Released.IsZero() {
			continue
		}

		user := userOf(s)
		if d.users[user] {
			delete(d.users, user)
		} else {
			s.Released = d.at
		}
	}
}

// takeBack lets users without a slice take the slice back that they had.
func (d *sliceDecider) takeBack() {
	for i := range d.blocks {
		s := &d.blocks[i]
		user := userOf(s)
		isNeeded := s.Node != "" && d.users[user]
		if isNeeded && !d.isDeclared(i) {
			delete(d.users, user)
			s.Released = time.Time{}
		}
	}
}

// free frees the slices that have rested. A time in the future comes from a wrong clock, and counts as the present.
func (d *sliceDecider) free() {
	for i := range d.blocks {
		s := &d.blocks[i]
		switch {
		case s.Released.IsZero():
		case s.Released.After(d.at):
			s.Released = d.at
		case d.at.Sub(s.Released) >= SliceRest:
			*s = lb.PortSlice{}
		}
	}
}

// assign gives slices to users without one, the highest ports first: Services declare low ones.
func (d *sliceDecider) assign(r *SliceResult) {
	isTaken := func(block int) bool {
		return d.blocks[block].Node != "" || d.isDeclared(block)
	}
	next := blocks - 1
	for _, u := range slices.SortedFunc(maps.Keys(d.users), SliceUser.compare) {
		for next > 0 && isTaken(next) {
			next--
		}

		if next == 0 {
			r.Refused = append(r.Refused, SliceRefusal{
				Address: d.address,
				User:    u,
				Message: d.explain(u),
			})
			continue
		}

		d.blocks[next] = lb.PortSlice{
			Address:   d.address,
			First:     uint16(next * lb.SlicePorts),
			Node:      u.Node,
			Namespace: u.Namespace,
		}
	}
}

// explain returns why a user gets no slice.
func (d *sliceDecider) explain(u SliceUser) string {
	var used, resting, declared int
	for _, s := range d.blocks[1:] {
		switch {
		case s.Node == "":
			declared++
		case s.Released.IsZero():
			used++
		default:
			resting++
		}
	}

	return fmt.Sprintf("no ports of %s are left for node %s: of the %d parts of its ports %d are in use, "+
		"%d are free again in %v at most, and %d have ports of Services; let the pods run on fewer nodes",
		d.address, u.Node, blocks-1, used, resting, SliceRest, declared)
}

// isDeclared reports whether a holder declares a port of a block.
func (d *sliceDecider) isDeclared(block int) bool {
	return slices.ContainsFunc(d.ports, func(p lb.Port) bool {
		return int(p.Port)/lb.SlicePorts == block
	})
}

// userOf returns the user that a slice was given to.
func userOf(s *lb.PortSlice) SliceUser {
	return SliceUser{Namespace: s.Namespace, Node: s.Node}
}
