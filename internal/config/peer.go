package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// compilePeers returns the peers by name. Conflicts are found node by node: a
// peer is unusable on the nodes where it conflicts, and in force on all others.
func compilePeers(r *report, objects []*v1beta1.BGPPeer, secrets secrets, nodes map[string]lb.Node) []lb.Peer {
	var peers []lb.Peer
	names := slices.Sorted(maps.Keys(nodes))
	older := map[string][]lb.Peer{}
	for _, o := range oldestFirst(objects) {
		object := lb.Object{Kind: KindPeer, Name: o.Name}
		p, err := compilePeer(r, object, o.Spec, secrets)
		if err != nil {
			reason := lb.InvalidPeer
			if errors.As(err, &errPassword{}) {
				reason = lb.PasswordMissing
			}
			r.fault(object, reason, "not used: %v", err)
			continue
		}
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
		return conflict{lb.PeerIsSelf, fmt.Sprintf("peerAddress %s is that node's own: write the router's, or keep the node out by nodeSelectors", p.Address)}, true
	}
	for _, other := range older {
		switch {
		case other.Address == p.Address && other.Interface == p.Interface:
			// Even with another port: a speaker identifies sessions by the router's address alone.
			return conflict{lb.DuplicatePeer, fmt.Sprintf("BGPPeer %q is older and has %s there: remove one of the two, or give them disjoint nodeSelectors", other.Name, whereTo(p))}, true
		case other.RouterID.IsValid() && p.RouterID.IsValid() && other.RouterID != p.RouterID:
			return conflict{lb.ConflictingRouterID, fmt.Sprintf("BGPPeer %q is older and gives routerID %s there: a node has one, write the same", other.Name, other.RouterID)}, true
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
	// defaultConnectTime is far below the 120 s of RFC 4271: a router that is back must get its routes within 3 s. GoBGP has no less.
	defaultConnectTime = 2 * time.Second
	// minHoldTime is the minimum of RFC 4271 section 4.2, apart from 0, which would switch detection off.
	minHoldTime = 3 * time.Second
	// maxTTL is the greatest TTL of a packet.
	maxTTL = math.MaxUint8
	// The values of dynamicASN.
	internalASN, externalASN = "internal", "external"
	// maxTimer is what 16 bits of seconds hold.
	maxTimer = math.MaxUint16 * time.Second
)

// compilePeer reads one peer by itself. CEL rejects most of these mistakes when
// the object is written, but not in objects older than the rule.
func compilePeer(r *report, object lb.Object, s v1beta1.BGPPeerSpec, secrets secrets) (lb.Peer, error) {
	p := lb.Peer{
		Name:            object.Name,
		Port:            bgpPort,
		MultiHop:        s.EBGPMultiHop,
		DualStack:       s.DualStackAddressFamily,
		GracefulRestart: valueOr(s.EnableGracefulRestart, true),
		NodeSelectors:   compileSelectors(r, object, "spec.nodeSelectors", s.NodeSelectors),
	}
	for _, step := range []func(*lb.Peer, v1beta1.BGPPeerSpec) error{readASNs, readEnds, readHops, readRouterID, readTimers, secrets.readPassword} {
		if err := step(&p, s); err != nil {
			return lb.Peer{}, err
		}
	}
	return p, nil
}

func readASNs(p *lb.Peer, s v1beta1.BGPPeerSpec) error {
	peerASN := s.PeerASN
	switch {
	case s.PeerASN == 0 && s.DynamicASN == "", s.PeerASN != 0 && s.DynamicASN != "":
		return errors.New("write either peerASN, or dynamicASN: internal or external")
	case s.DynamicASN == internalASN:
		peerASN = s.MyASN
	case s.DynamicASN != "" && s.DynamicASN != externalASN:
		return fmt.Errorf("dynamicASN %q must be internal or external", s.DynamicASN)
	}
	for field, asn := range map[string]int64{"myASN": s.MyASN, "peerASN": peerASN, "localASN": s.LocalASN} {
		absent := asn == 0 && (field == "localASN" || s.DynamicASN == externalASN && field == "peerASN")
		if !absent && (asn < 1 || asn > math.MaxUint32) {
			return fmt.Errorf("%s must be between 1 and 4294967295", field)
		}
	}
	p.LocalASN, p.PeerASN = uint32(s.MyASN), uint32(peerASN)
	if s.LocalASN != 0 {
		if peerASN == s.MyASN || peerASN == s.LocalASN {
			return errors.New("localASN is for peers of another AS, and must not be the peer's own: write myASN alone, or correct peerASN")
		}
		p.LocalASN = uint32(s.LocalASN)
	}
	return nil
}

// readHops reads how far away the router may be.
func readHops(p *lb.Peer, s v1beta1.BGPPeerSpec) error {
	switch {
	case s.VRF != "":
		return errors.New("sessions within a VRF are not served: remove vrf, and use a router that the node reaches by its main routing table")
	case s.EBGPMultiHop && p.LocalASN == p.PeerASN:
		return errors.New("ebgpMultiHop is for peers of another AS: remove it, or correct myASN or peerASN")
	case s.TTLSecurity == 0:
		return nil
	case s.TTLSecurity < 0 || s.TTLSecurity >= maxTTL:
		return errors.New("ttlSecurity must be between 1 and 254 hops")
	case s.EBGPMultiHop:
		return errors.New("ttlSecurity and ebgpMultiHop exclude each other: ttlSecurity is itself the number of hops")
	}
	// RFC 5082 section 3: both ends send with the greatest TTL, and each hop takes one; a neighbour is one hop away, and
	// its packets lose nothing.
	p.MinTTL = uint8(maxTTL + 1 - s.TTLSecurity)
	return nil
}

func readEnds(p *lb.Peer, s v1beta1.BGPPeerSpec) error {
	read := readNumbered
	switch {
	case s.PeerAddress == "" && s.Interface == "", s.PeerAddress != "" && s.Interface != "":
		return errors.New("write either peerAddress, or interface for an unnumbered peer")
	case s.Interface != "":
		read = readUnnumbered
	}
	if err := read(p, s); err != nil {
		return err
	}
	if s.PeerPort < 0 || s.PeerPort > math.MaxUint16 {
		return errors.New("peerPort must be between 1 and 65535")
	}
	if s.PeerPort != 0 {
		p.Port = uint16(s.PeerPort)
	}
	return nil
}

func readNumbered(p *lb.Peer, s v1beta1.BGPPeerSpec) (err error) {
	if p.Address, err = hostAddr("peerAddress", s.PeerAddress); err != nil || s.SourceAddress == "" {
		return err
	}
	if p.SourceAddress, err = hostAddr("sourceAddress", s.SourceAddress); err != nil {
		return err
	}
	if p.SourceAddress.BitLen() != p.Address.BitLen() {
		return errors.New("sourceAddress and peerAddress must be of one IP family")
	}
	return nil
}

// linkName is what a link of the kernel can be called (dev_valid_name), without what nobody uses.
var linkName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,15}$`)

// readUnnumbered reads an unnumbered peer. Its session carries both families: it has no address of which only one could follow.
func readUnnumbered(p *lb.Peer, s v1beta1.BGPPeerSpec) error {
	switch {
	case !linkName.MatchString(s.Interface) || s.Interface == "." || s.Interface == "..":
		return fmt.Errorf("interface %q is no name of a link: 1 to 15 letters, digits, '_', '-' and '.'", s.Interface)
	case s.SourceAddress != "":
		return errors.New("interface and sourceAddress exclude each other: an unnumbered session is between link-local addresses")
	case s.EBGPMultiHop:
		return errors.New("interface and ebgpMultiHop exclude each other: an unnumbered peer is on the node's link")
	}
	p.Interface, p.DualStack = s.Interface, true
	return nil
}

// hostAddr reads an address that a host on another machine can have.
func hostAddr(field, s string) (netip.Addr, error) {
	a, err := parseAddr(s)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("%s %w", field, err)
	case a.IsUnspecified(), a.IsLoopback(), a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return netip.Addr{}, fmt.Errorf("%s %s is no address of one router or node: write its unicast address", field, a)
	case a.Is6() && a.IsLinkLocalUnicast():
		return netip.Addr{}, fmt.Errorf("%s %s is link-local and needs a link to be dialled on: write a global or unique local address, or interface", field, a)
	}
	return a, nil
}

func readRouterID(p *lb.Peer, s v1beta1.BGPPeerSpec) error {
	if s.RouterID == "" {
		return nil
	}
	// RFC 6286 section 2.1: four octets, not zero.
	id, err := parseAddr(s.RouterID)
	if err != nil || !id.Is4() || id.IsUnspecified() {
		return fmt.Errorf("routerID %q must have the form of an IPv4 address other than 0.0.0.0", s.RouterID)
	}
	p.RouterID = id
	return nil
}

func readTimers(p *lb.Peer, s v1beta1.BGPPeerSpec) error {
	p.HoldTime = valueOr(s.HoldTime, metav1.Duration{Duration: defaultHoldTime}).Duration
	switch {
	case p.HoldTime < minHoldTime || p.HoldTime > maxTimer:
		return errors.New("holdTime must be between 3s and 65535s")
	case p.HoldTime%time.Second != 0:
		return fmt.Errorf("holdTime must be whole seconds: write %s", p.HoldTime.Round(time.Second))
	}
	p.KeepaliveTime = valueOr(s.KeepaliveTime, metav1.Duration{Duration: (p.HoldTime / 3).Truncate(time.Second)}).Duration
	switch {
	case p.KeepaliveTime < time.Second:
		return errors.New("keepaliveTime must be at least 1s")
	case p.KeepaliveTime > p.HoldTime:
		return fmt.Errorf("keepaliveTime must not be longer than holdTime, which is %s", p.HoldTime)
	}
	p.ConnectTime = valueOr(s.ConnectTime, metav1.Duration{Duration: defaultConnectTime}).Duration
	if p.ConnectTime < time.Second || p.ConnectTime > maxTimer {
		return errors.New("connectTime must be between 1s and 65535s")
	}
	return nil
}
