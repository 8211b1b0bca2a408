package config

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

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
		GracefulRestart: s.EnableGracefulRestart == nil || *s.EnableGracefulRestart,
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
	var err error
	if p.Address, err = hostAddr("peerAddress", s.PeerAddress); err != nil {
		return err
	}
	if s.SourceAddress != "" {
		if p.SourceAddress, err = hostAddr("sourceAddress", s.SourceAddress); err != nil {
			return err
		}
		if p.SourceAddress.BitLen() != p.Address.BitLen() {
			return errors.New("sourceAddress and peerAddress must be of one IP family")
		}
	}
	if s.PeerPort < 0 || s.PeerPort > math.MaxUint16 {
		return errors.New("peerPort must be between 1 and 65535")
	}
	if s.PeerPort != 0 {
		p.Port = uint16(s.PeerPort)
	}
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
		return netip.Addr{}, fmt.Errorf("%s %s is link-local and needs a link to be dialled on: write a global or unique local address", field, a)
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
	p.HoldTime = durationOr(s.HoldTime, defaultHoldTime)
	switch {
	case p.HoldTime < minHoldTime || p.HoldTime > maxTimer:
		return errors.New("holdTime must be between 3s and 65535s")
	case p.HoldTime%time.Second != 0:
		return fmt.Errorf("holdTime must be whole seconds: write %s", p.HoldTime.Round(time.Second))
	}
	p.KeepaliveTime = durationOr(s.KeepaliveTime, (p.HoldTime / 3).Truncate(time.Second))
	switch {
	case p.KeepaliveTime < time.Second:
		return errors.New("keepaliveTime must be at least 1s")
	case p.KeepaliveTime > p.HoldTime:
		return fmt.Errorf("keepaliveTime must not be longer than holdTime, which is %s", p.HoldTime)
	}
	p.ConnectTime = durationOr(s.ConnectTime, defaultConnectTime)
	if p.ConnectTime < time.Second || p.ConnectTime > maxTimer {
		return errors.New("connectTime must be between 1s and 65535s")
	}
	return nil
}

func durationOr(d *metav1.Duration, otherwise time.Duration) time.Duration {
	if d == nil {
		return otherwise
	}
	return d.Duration
}
