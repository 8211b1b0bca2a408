package bgp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

const (
	defaultPort = 179
	// defaultHoldTime and defaultConnectTime are the RFC's (RFC 4271 section 10).
	defaultHoldTime    = 90 * time.Second
	defaultConnectTime = 120 * time.Second
)

// usable returns the settings of the peers that are usable, sorted by name, and why the others are not. A router takes
// one session from an address, so of two peers with the same address only the first by name is usable.
func usable(d Desired) ([]wire.Settings, error) {
	var errs []error
	var out []wire.Settings
	taken := map[netip.Addr]string{}
	for _, p := range slices.SortedFunc(slices.Values(d.Peers), func(a, b lb.Peer) int { return strings.Compare(a.Name, b.Name) }) {
		s, err := settingsOf(p)
		if other, found := taken[p.Address]; found && p.Address.IsValid() {
			err = fmt.Errorf("%s is the address of peer %s already", p.Address, other)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("use peer %s: %w", p.Name, err))
			continue
		}
		s.RouterID = d.RouterID
		out, taken[p.Address] = append(out, s), p.Name
	}
	return out, errors.Join(errs...)
}

// settingsOf returns the settings of a peer, or why it is not usable.
func settingsOf(p lb.Peer) (wire.Settings, error) {
	found := p.Interface == "" || p.Address.IsValid() // the router of an unnumbered peer
	switch {
	case found && (!p.Address.IsValid() || p.Address.IsUnspecified()):
		return wire.Settings{}, errors.New("it has no address")
	case p.Address.Is6() && p.Address.IsLinkLocalUnicast() && p.Address.Zone() == "":
		return wire.Settings{}, fmt.Errorf("%s is link-local, and no link is given", p.Address)
	}
	if p.SourceAddress.IsValid() && p.SourceAddress.Is4() != p.Address.Is4() {
		return wire.Settings{}, fmt.Errorf("source address %s is of another family than %s", p.SourceAddress, p.Address)
	}
	s := wire.Settings{
		Name: p.Name, Interface: p.Interface, Address: p.Address, Port: p.Port, Source: p.SourceAddress,
		LocalASN: p.LocalASN, PeerASN: p.PeerASN,
		HoldTime: seconds(p.HoldTime, defaultHoldTime), Connect: seconds(p.ConnectTime, defaultConnectTime),
		MultiHop: p.MultiHop, GracefulRestart: p.GracefulRestart,
		MinTTL: p.MinTTL, DualStack: p.DualStack, Password: p.Password,
	}
	if s.Port == 0 {
		s.Port = defaultPort
	}
	// A third of the hold time (RFC 4271 section 4.4).
	s.Keepalive = seconds(p.KeepaliveTime, time.Duration(s.HoldTime)*time.Second/3)
	return s, nil
}

// seconds rounds up, never to 0, which means GoBGP's own default.
func seconds(d, otherwise time.Duration) uint64 {
	if d <= 0 {
		d = otherwise
	}
	return uint64((d + time.Second - 1) / time.Second)
}
