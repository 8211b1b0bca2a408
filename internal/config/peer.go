package config

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// compilePeers returns the peers by name. Conflicts are found node by node: a
// peer is unusable on the nodes where it conflicts, and in force on all others.
func compilePeers(r *report, objects Objects, nodes map[string]lb.Node) []lb.Peer {
	var peers []lb.Peer
	names := slices.Sorted(maps.Keys(nodes))
	older := map[string][]lb.Peer{}
	for _, o := range oldestFirst(objects.Peers) {
		object, reason := lb.Object{Kind: KindPeer, Name: o.Name}, lb.InvalidPeer
		p, err := compilePeer(r, object, o.Spec)
		if err == nil {
			reason = lb.PasswordMissing
			p.Password, err = objects.readPassword(o.Spec)
		}
		if err != nil {
			r.fault(object, reason, "not used: %v", err)
			continue
		}
		p.BFD = readBFD(r, object, o.Spec.BFDProfile, objects.BFDProfiles)
		where := map[conflict][]string{}
		p.Unusable = map[string]lb.Reason{}
		for _, name := range names {
			node := nodes[name]
			if len(p.NodeSelectors) > 0 && !lb.MatchesAny(p.NodeSelectors, node.Labels) {
				continue
			}
			if c, found := findConflict(p, node, older[name]); found {
				where[c] = append(where[c], name)
				continue
			}
			older[name] = append(older[name], p)
		}
		for c, on := range where {
			for _, node := range on {
				p.Unusable[node] = c.reason
			}
			r.fault(object, c.reason, "not used on %s: %s", lb.SomeOf(on), c.why)
		}
		peers = append(peers, p)
	}
	slices.SortFunc(peers, func(a, b lb.Peer) int { return cmp.Compare(a.Name, b.Name) })
	return peers
}

// Selects reports whether a peer is to have a session with a node of these labels, whatever else is wrong with it.
func Selects(p *v1beta1.BGPPeer, labels map[string]string) bool {
	selectors := compileSelectors(&report{}, lb.Object{}, "", p.Spec.NodeSelectors)
	return len(selectors) == 0 || lb.MatchesAny(selectors, labels)
}

// conflict is why a peer cannot be used on a node.
type conflict struct {
	reason lb.Reason
	why    string
}

// findConflict returns how a peer conflicts with the older ones on a node, if it does.
func findConflict(p lb.Peer, node lb.Node, older []lb.Peer) (conflict, bool) {
	if slices.Contains(node.Addresses, p.Address) {
		return conflict{lb.PeerIsSelf, fmt.Sprintf("peerAddress %s is that node's own", p.Address)}, true
	}
	for _, other := range older {
		switch {
		case other.Address == p.Address && other.Interface == p.Interface:
			// Even with another port: a speaker identifies sessions by the router's address alone.
			return conflict{lb.DuplicatePeer, fmt.Sprintf("BGPPeer %q is older and has %s there", other.Name,
				whereTo(p))}, true
		case other.RouterID.IsValid() && p.RouterID.IsValid() && other.RouterID != p.RouterID:
			return conflict{lb.ConflictingRouterID, fmt.Sprintf("BGPPeer %q is older and gives routerID %s there, "+
				"and a node has one", other.Name,
				other.RouterID)}, true
		}
	}
	return conflict{}, false
}

// whereTo names the field that says where the router is.
func whereTo(p lb.Peer) string {
	if p.Interface != "" {
		return "interface " + p.Interface
	}
	return "peerAddress " + p.Address.String()
}

const (
	// bgpPort is where routers listen (RFC 4271 section 8).
	bgpPort = 179
	// defaultHoldTime is the suggestion of RFC 4271 section 10.
	defaultHoldTime = 90 * time.Second
	// defaultConnectTime is far below the 120 s of RFC 4271: a router that is back must get its routes within 3 s.
	// GoBGP has no less.
	defaultConnectTime = 2 * time.Second
	// internalASN is a value of dynamicASN; the other is external, any AS but ours.
	internalASN = "internal"
)

// compilePeer reads one peer by itself. It reports what the schema, by which the API server refuses most mistakes,
// cannot say.
func compilePeer(r *report, object lb.Object, s v1beta1.BGPPeerSpec) (lb.Peer, error) {
	p := lb.Peer{
		Name:      object.Name,
		LocalASN:  uint32(cmp.Or(s.LocalASN, s.MyASN)),
		PeerASN:   uint32(s.PeerASN),
		Interface: s.Interface,
		Port:      uint16(cmp.Or(s.PeerPort, bgpPort)),
		MultiHop:  s.EBGPMultiHop,
		DualStack: s.DualStackAddressFamily ||
			s.Interface != "", // an unnumbered peer has no address of which only one family could follow
		GracefulRestart: valueOr(s.EnableGracefulRestart, true),
		NodeSelectors:   compileSelectors(r, object, "spec.nodeSelectors", s.NodeSelectors),
	}
	if s.DynamicASN == internalASN {
		p.PeerASN = uint32(s.MyASN)
	}
	if s.TTLSecurity != 0 {
		// RFC 5082 section 3: both ends send with the greatest TTL, and each hop takes one; a neighbour is one hop
		// away, and its packets lose nothing.
		p.MinTTL = uint8(math.MaxUint8 + 1 - s.TTLSecurity)
	}
	err := cmp.Or(readEnds(&p, s), readTimers(&p, s))
	return p, err
}

func readEnds(p *lb.Peer, s v1beta1.BGPPeerSpec) error {
	var err1, err2 error
	p.Address, err1 = hostAddr("peerAddress", s.PeerAddress)
	p.SourceAddress, err2 = hostAddr("sourceAddress", s.SourceAddress)
	if err := cmp.Or(err1, err2); err != nil || s.RouterID == "" {
		return err
	}
	// RFC 6286 section 2.1: four octets, not zero.
	if p.RouterID, err1 = parseAddr(s.RouterID); err1 != nil || p.RouterID.IsUnspecified() {
		return fmt.Errorf("routerID %q must have the form of an IPv4 address other than 0.0.0.0", s.RouterID)
	}
	return nil
}

// hostAddr reads an address that a host on another machine can have, the zero Addr for "".
func hostAddr(field, s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, nil
	}
	a, err := parseAddr(s)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("%s %w", field, err)
	case a.IsUnspecified(), a.IsLoopback(), a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return netip.Addr{}, fmt.Errorf("%s %s is not the unicast address of a router or node", field, a)
	case a.Is6() && a.IsLinkLocalUnicast():
		return netip.Addr{}, fmt.Errorf(
			"%s %s is link-local and needs a link to be dialled on: write a global or unique local address, or interface",
			field,
			a,
		)
	}
	return a, nil
}

func readTimers(p *lb.Peer, s v1beta1.BGPPeerSpec) error {
	p.HoldTime = valueOr(s.HoldTime, metav1.Duration{Duration: defaultHoldTime}).Duration
	p.KeepaliveTime = cmp.Or(
		valueOr(s.KeepaliveTime, metav1.Duration{}).Duration,
		(p.HoldTime / 3).Truncate(time.Second),
	)
	p.ConnectTime = valueOr(s.ConnectTime, metav1.Duration{Duration: defaultConnectTime}).Duration
	if p.HoldTime%time.Second != 0 {
		return fmt.Errorf("holdTime must be whole seconds: write %s", p.HoldTime.Round(time.Second))
	}
	if p.KeepaliveTime > p.HoldTime {
		return fmt.Errorf("keepaliveTime must not be longer than holdTime, which is %s", p.HoldTime)
	}
	return nil
}
