package bgp

import (
	"fmt"
	"io"
	"net"
	"net/netip"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

func attribute(a gobgp.PathAttributeInterface) string {
	switch a := a.(type) {
	case *gobgp.PathAttributeOrigin:
		return map[uint8]string{0: "igp", 1: "egp", 2: "incomplete"}[a.Value]
	case *gobgp.PathAttributeAsPath:
		text := "path"
		for _, segment := range a.Value {
			text += fmt.Sprintf(" %v", segment.GetAS())
		}
		return text
	case *gobgp.PathAttributeNextHop:
		return "via " + a.Value.String()
	case *gobgp.PathAttributeMultiExitDisc:
		return fmt.Sprintf("med %d", a.Value)
	case *gobgp.PathAttributeLocalPref:
		return fmt.Sprintf("preference %d", a.Value)
	case *gobgp.PathAttributeCommunities:
		text := "communities"
		for _, c := range a.Value {
			text += fmt.Sprintf(" %d:%d", c>>16, c&0xffff)
		}
		return text
	case *gobgp.PathAttributeLargeCommunities:
		text := "large"
		for _, c := range a.Values {
			text += " " + c.String()
		}
		return text
	}
	return fmt.Sprintf("attribute %d", a.GetType())
}

func (r *router) family() gobgp.Family {
	if r.address.Addr().Is4() {
		return gobgp.RF_IPv4_UC
	}
	return gobgp.RF_IPv6_UC
}

func (r *router) open() *gobgp.BGPMessage {
	caps := []gobgp.ParameterCapabilityInterface{
		gobgp.NewCapMultiProtocol(r.family()), gobgp.NewCapFourOctetASNumber(r.asn),
	}
	if r.graceful {
		caps = append(caps, gobgp.NewCapGracefulRestart(false, false, 120,
			[]*gobgp.CapGracefulRestartTuple{gobgp.NewCapGracefulRestartTuple(r.family(), false)}))
	}
	as := uint16(gobgp.AS_TRANS)
	if r.asn < 1<<16 {
		as = uint16(r.asn)
	}
	m, err := gobgp.NewBGPOpenMessage(as, 90, netip.MustParseAddr("192.0.2.250"),
		[]gobgp.OptionParameterInterface{gobgp.NewOptionParameterCapability(caps)})
	if err != nil {
		panic(err)
	}
	return m
}

func (r *router) send(conn net.Conn, m *gobgp.BGPMessage) {
	b, err := m.Serialize()
	if err != nil {
		panic(err)
	}
	_, _ = conn.Write(b) // a closed connection shows when it is read
}

func read(conn net.Conn) (*gobgp.BGPMessage, error) {
	header := make([]byte, gobgp.BGP_HEADER_LENGTH)
	if _, err := io.ReadFull(conn, header); err != nil {
		return nil, err
	}
	var h gobgp.BGPHeader
	if err := h.DecodeFromBytes(header); err != nil {
		return nil, err
	}
	body := make([]byte, h.Len-gobgp.BGP_HEADER_LENGTH)
	if _, err := io.ReadFull(conn, body); err != nil {
		return nil, err
	}
	return gobgp.ParseBGPBody(&h, body)
}
