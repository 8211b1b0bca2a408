package engine

import (
	"net"
	"sync/atomic"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// heard is what a router said on a connection before the session was up. GoBGP reads it and reports nothing of it.
type heard struct {
	// asn is the AS of its OPEN; 0 without one.
	asn uint32
	// code and subcode are from its NOTIFICATION (RFC 4271 section 4.5); 0 without one.
	code, subcode uint8
}

// listened is a connection that notes what the router says until its first KEEPALIVE.
type listened struct {
	*net.TCPConn
	notes *notes
	said  heard
	// buffer has the begin of a message.
	buffer []byte
	isOver bool
	// isClosed reports whether GoBGP has closed the connection.
	isClosed atomic.Bool
}

// maxHeard bounds a message of the beginning: an OPEN and a NOTIFICATION are no longer (RFC 4271 section 4.1).
const maxHeard = gobgp.BGP_MAX_MESSAGE_LENGTH

// Close implements net.Conn.
func (c *listened) Close() error {
	defer c.isClosed.Store(true)
	return c.TCPConn.Close()
}

// Read implements net.Conn. GoBGP reads in one goroutine.
func (c *listened) Read(into []byte) (int, error) {
	n, err := c.TCPConn.Read(into)
	if !c.isOver {
		c.buffer = append(c.buffer, into[:n]...)
		c.parse()
	}
	return n, err
}

// parse reads the messages that are complete. It stops at the first that is none.
func (c *listened) parse() {
	for !c.isOver && len(c.buffer) >= gobgp.BGP_HEADER_LENGTH {
		header := gobgp.BGPHeader{}
		err := header.DecodeFromBytes(c.buffer)
		length := int(header.Len)
		if err != nil || length < gobgp.BGP_HEADER_LENGTH || length > maxHeard {
			c.end()
			return
		}

		if len(c.buffer) < length {
			return
		}

		message, err := gobgp.ParseBGPMessage(c.buffer[:length])
		if err != nil {
			c.end()
			return
		}

		c.buffer = c.buffer[length:]
		c.note(message)
	}
}

func (c *listened) note(message *gobgp.BGPMessage) {
	switch body := message.Body.(type) {
	case *gobgp.BGPOpen:
		c.said.asn = asnOf(body)
	case *gobgp.BGPNotification:
		c.said.code, c.said.subcode = body.ErrorCode, body.ErrorSubcode
		c.end()
	default:
		c.end()
		return
	}

	c.notes.hear(c.said)
}

func (c *listened) end() { c.isOver, c.buffer = true, nil }

// hear takes what a router said on one connection in place of what it said on those before. A router that refuses
// without an OPEN has the AS that it had.
func (n *notes) hear(said heard) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if said.asn == 0 {
		said.asn = n.latest.heard.asn
	}
	n.latest.heard = said
}

// asnOf returns the AS of an OPEN: of its capability, as the field has two octets only (RFC 6793).
func asnOf(open *gobgp.BGPOpen) uint32 {
	asn := uint32(open.MyAS)
	for _, parameter := range open.OptParams {
		capabilities, ok := parameter.(*gobgp.OptionParameterCapability)
		if !ok {
			continue
		}

		for _, c := range capabilities.Capability {
			if four, ok := c.(*gobgp.CapFourOctetASNumber); ok {
				asn = four.CapValue
			}
		}
	}

	return asn
}
