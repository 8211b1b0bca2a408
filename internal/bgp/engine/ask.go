package engine

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
)

// askTimeout bounds the attempt to learn a router's AS.
const askTimeout = 5 * time.Second

// askAS connects to a router, which sends its OPEN at once, and returns a
// sentence about its AS; empty if that fails. It sends nothing.
func askAS(s wire.Settings) string {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	dialer := net.Dialer{}
	if s.Source.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(s.Source, 0))
	}
	conn, err := dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(s.Address, s.Port).String())
	if err != nil {
		return ""
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	asn, err := readAS(conn)
	if err != nil || asn == s.PeerASN {
		return ""
	}
	return fmt.Sprintf("peer AS is %d, configured %d", asn, s.PeerASN)
}

// readAS reads one message, which must be an OPEN, and returns its AS.
func readAS(r io.Reader) (uint32, error) {
	header := make([]byte, gobgp.BGP_HEADER_LENGTH)
	if _, err := io.ReadFull(r, header); err != nil {
		return 0, err
	}
	var h gobgp.BGPHeader
	if err := h.DecodeFromBytes(header); err != nil {
		return 0, err
	}
	if h.Len < gobgp.BGP_HEADER_LENGTH || h.Len > gobgp.BGP_MAX_MESSAGE_LENGTH {
		return 0, fmt.Errorf("message of %d bytes", h.Len)
	}
	body := make([]byte, h.Len-gobgp.BGP_HEADER_LENGTH)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, err
	}
	m, err := gobgp.ParseBGPBody(&h, body)
	if err != nil {
		return 0, err
	}
	open, ok := m.Body.(*gobgp.BGPOpen)
	if !ok {
		return 0, fmt.Errorf("message of type %d, not an OPEN", h.Type)
	}
	return openAS(open), nil
}

// openAS returns the AS of an OPEN: the four-octet one if present (RFC 6793 section 3).
func openAS(open *gobgp.BGPOpen) uint32 {
	for _, param := range open.OptParams {
		caps, ok := param.(*gobgp.OptionParameterCapability)
		if !ok {
			continue
		}
		for _, c := range caps.Capability {
			if four, ok := c.(*gobgp.CapFourOctetASNumber); ok {
				return four.CapValue
			}
		}
	}
	return uint32(open.MyAS)
}
