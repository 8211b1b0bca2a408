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

// compilePeers returns the peers, ordered by name. Conflicts are found for each node: a peer is unusable on the nodes
// where it conflicts with an older one, and in force on all others.
func compilePeers(r *problemList, objects Objects, nodes map[string]lb.Node) []lb.Peer {
	var peers []lb.Peer
	names := slices.Sorted(maps.Keys(nodes))
	older := map[string][]lb.Peer{}
	for _, o := range oldestFirst(objects.Peers) {
		object := lb.Object{Kind: KindPeer, Name: o.Name}
		p, err := compilePeer(r, object, o.Spec)
		if err != nil {
			r.add(object, lb.InvalidPeer, "not used: %v", err)
			continue
		}
		p.Password, err = objects.readPassword(o.Spec)
		if err != nil {
			r.add(object, lb.PasswordMissing, "not used: %v", err)
			continue
		}

		p.BFD = readBFD(r, object, o.Spec.BFDProfile, objects.BFDProfiles)
		findConflicts(r, object, &p, nodes, names, older)
		peers = append(peers, p)
	}

	slices.SortFunc(peers, func(a, b lb.Peer) int {
		return cmp.Compare(a.Name, b.Name)
	})
	return peers
}

// findConflicts sets the nodes on which a peer is unusable, and reports them. It adds the peer to the older peers of
// all other nodes. names are the names of the nodes, sorted.
func findConflicts(
	r *problemList,
	object lb.Object,
	p *lb.Peer,
	nodes map[string]lb.Node,
	names []string,
	older map[string][]lb.Peer,
) {
	p.Unusable = map[string]lb.Reason{}
	conflicts := map[peerConflict][]string{}
	for _, name := range names {
		node := nodes[name]
		isSelected := len(p.NodeSelectors) == 0 || lb.MatchesAny(p.NodeSelectors, node.Labels)
		if !isSelected {
			continue
		}

		c, ok := findConflict(*p, node, older[name])
		if ok {
			conflicts[c] = append(conflicts[c], name)
			p.Unusable[name] = c.reason
		} else {
			older[name] = append(older[name], *p)
		}
	}

	for c, on := range conflicts {
		r.add(object, c.reason, "not used on %s: %s", lb.SomeOf(on), c.cause)
	}
}

// Selects reports whether a peer should have a session with a node of these labels, whatever else is wrong with the
// peer.
func Selects(p *v1beta1.BGPPeer, labels map[string]string) bool {
	selectors := compileSelectors(&problemList{}, lb.Object{}, "", p.Spec.NodeSelectors)
	return len(selectors) == 0 || lb.MatchesAny(selectors, labels)
}

// peerConflict is the reason why a peer cannot be used on a node.
type peerConflict struct {
	reason lb.Reason
	cause  string
}

// findConflict reports whether a peer conflicts with a node or with the older peers there, and returns the first
// conflict.
func findConflict(p lb.Peer, node lb.Node, older []lb.Peer) (peerConflict, bool) {
	if slices.Contains(node.Addresses, p.Address) {
		cause := fmt.Sprintf("peerAddress %s is that node's own", p.Address)
		return peerConflict{reason: lb.PeerIsSelf, cause: cause}, true
	}

	for _, other := range older {
		// Even with another port: a speaker identifies sessions by the router's address alone.
		isDuplicate := other.Address == p.Address && other.Interface == p.Interface
		if isDuplicate {
			cause := fmt.Sprintf("BGPPeer %q is older and has %s there", other.Name, locationOf(p))
			return peerConflict{reason: lb.DuplicatePeer, cause: cause}, true
		}

		haveRouterIDs := other.RouterID.IsValid() && p.RouterID.IsValid()
		if haveRouterIDs && other.RouterID != p.RouterID {
			cause := fmt.Sprintf("BGPPeer %q is older and gives routerID %s there, and a node has one",
				other.Name, other.RouterID)
			return peerConflict{reason: lb.ConflictingRouterID, cause: cause}, true
		}
	}

	return peerConflict{}, false
}

// locationOf returns the field that locates the router, with its value.
func locationOf(p lb.Peer) string {
	if p.Interface != "" {
		return "interface " + p.Interface
	}
	return "peerAddress " + p.Address.String()
}

const (
	// bgpPort is the port on which routers listen (RFC 4271 section 8).
	bgpPort = 179
	// defaultHoldTime is the suggestion of RFC 4271 section 10.
	defaultHoldTime = 90 * time.Second
	// defaultConnectTime is far below the 120 s of RFC 4271: a returning router must get its routes within 3 s. It is
	// the minimum of GoBGP.
	defaultConnectTime = 2 * time.Second
	// internalASN is a value of dynamicASN. The other value is external: any AS but ours.
	internalASN = "internal"
)

// compilePeer reads one peer by itself. The API server refuses most mistakes by the schema; compilePeer finds the
// others.
func compilePeer(r *problemList, object lb.Object, s v1beta1.BGPPeerSpec) (lb.Peer, error) {
	isUnnumbered := s.Interface != ""
	p := lb.Peer{
		Name:      object.Name,
		LocalASN:  uint32(cmp.Or(s.LocalASN, s.MyASN)),
		PeerASN:   uint32(s.PeerASN),
		Interface: s.Interface,
		Port:      uint16(cmp.Or(s.PeerPort, bgpPort)),
		MultiHop:  s.EBGPMultiHop,
		// An unnumbered peer has no address that could limit it to one family.
		DualStack:       s.DualStackAddressFamily || isUnnumbered,
		GracefulRestart: valueOr(s.EnableGracefulRestart, true),
		NodeSelectors:   compileSelectors(r, object, "spec.nodeSelectors", s.NodeSelectors),
	}
	if s.DynamicASN == internalASN {
		p.PeerASN = uint32(s.MyASN)
	}

	if s.TTLSecurity != 0 {
		// RFC 5082 section 3: both ends send with the greatest TTL, and each hop takes one. A neighbour is one hop
		// away, and its packets lose nothing.
		p.MinTTL = uint8(math.MaxUint8 + 1 - s.TTLSecurity)
	}

	endsErr := readEnds(&p, s)
	timersErr := readTimers(&p, s)
	return p, cmp.Or(endsErr, timersErr)
}

// readEnds reads the addresses of both ends, and the router id.
func readEnds(p *lb.Peer, s v1beta1.BGPPeerSpec) error {
	var peerErr, sourceErr error
	p.Address, peerErr = hostAddr("peerAddress", s.PeerAddress)
	p.SourceAddress, sourceErr = hostAddr("sourceAddress", s.SourceAddress)
	if err := cmp.Or(peerErr, sourceErr); err != nil {
		return err
	}
	if s.RouterID == "" {
		return nil
	}

	// RFC 6286 section 2.1: four octets, not zero.
	id, err := parseAddr(s.RouterID)
	if err != nil || id.IsUnspecified() {
		return fmt.Errorf("routerID %q must have the form of an IPv4 address other than 0.0.0.0", s.RouterID)
	}

	p.RouterID = id
	return nil
}

// hostAddr reads an address that a host on another machine can have. It returns the zero Addr for "".
func hostAddr(field, s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, nil
	}

	a, err := parseAddr(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%s %w", field, err)
	}

	isBroadcast := a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
	switch {
	case isBroadcast, a.IsUnspecified(), a.IsLoopback(), a.IsMulticast():
		return netip.Addr{}, fmt.Errorf("%s %s is not the unicast address of a router or node", field, a)
	case a.Is6() && a.IsLinkLocalUnicast():
		return netip.Addr{}, fmt.Errorf("%s %s is link-local and needs a link to be dialled on: "+
			"write a global or unique local address, or interface", field, a)
	}

	return a, nil
}

// durationOr returns the duration of an optional field, or the default.
func durationOr(field *metav1.Duration, otherwise time.Duration) time.Duration {
	if field == nil {
		return otherwise
	}
	return field.Duration
}

// readTimers reads the times of a session.
func readTimers(p *lb.Peer, s v1beta1.BGPPeerSpec) error {
	p.HoldTime = durationOr(s.HoldTime, defaultHoldTime)
	defaultKeepaliveTime := (p.HoldTime / 3).Truncate(time.Second)
	p.KeepaliveTime = cmp.Or(durationOr(s.KeepaliveTime, 0), defaultKeepaliveTime)
	p.ConnectTime = durationOr(s.ConnectTime, defaultConnectTime)

	if p.HoldTime%time.Second != 0 {
		return fmt.Errorf("holdTime must be whole seconds: write %s", p.HoldTime.Round(time.Second))
	}
	if p.KeepaliveTime > p.HoldTime {
		return fmt.Errorf("keepaliveTime must not be longer than holdTime, which is %s", p.HoldTime)
	}

	return nil
}
