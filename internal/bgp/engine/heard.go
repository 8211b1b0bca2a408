package engine

import (
	"net"
	"sync/atomic"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// routerMessages are the contents of a router's messages before the session is up. GoBGP reads them and does not report
// them.
type routerMessages struct {
	// asn is the AS of its OPEN; 0 without one.
	asn uint32
	// code and subcode are from its NOTIFICATION (RFC 4271 section 4.5); 0 without one.
	code, subcode uint8
}

// recordingConn is a connection that records the router's messages until the first KEEPALIVE.
type recordingConn struct {
	*net.TCPConn
	notes    *notes
	messages routerMessages
	// buffer has the beginning of an incomplete message.
	buffer []byte
	// isOver reports whether no more messages are recorded.
	isOver bool
	// isClosed reports whether GoBGP has closed the connection.
	isClosed atomic.Bool
}

// maxMessage is the maximum size of an OPEN and of a NOTIFICATION, in bytes (RFC 4271 section 4.1).
const maxMessage = gobgp.BGP_MAX_MESSAGE_LENGTH

// Close implements net.Conn.
func (c *recordingConn) Close() error {
	defer c.isClosed.Store(true)
	return c.TCPConn.Close()
}

// Read implements net.Conn. GoBGP calls it from one goroutine.
func (c *recordingConn) Read(into []byte) (int, error) {
	n, err := c.TCPConn.Read(into)
	if !c.isOver {
		c.buffer = append(c.buffer, into[:n]...)
		c.parse()
	}
	return n, err
}

// parse records the complete messages in the buffer. It ends the recording at an invalid message.
func (c *recordingConn) parse() {
	for !c.isOver && len(c.buffer) >= gobgp.BGP_HEADER_LENGTH {
		header := gobgp.BGPHeader{}
		err := header.DecodeFromBytes(c.buffer)
		length := int(header.Len)
		if err != nil || length < gobgp.BGP_HEADER_LENGTH || length > maxMessage {
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

// note records a message. Any other than an OPEN ends the recording.
func (c *recordingConn) note(message *gobgp.BGPMessage) {
	switch body := message.Body.(type) {
	case *gobgp.BGPOpen:
		c.messages.asn = asnOf(body)
	case *gobgp.BGPNotification:
		c.messages.code, c.messages.subcode = body.ErrorCode, body.ErrorSubcode
		c.end()
	default:
		c.end()
		return
	}

	c.notes.setMessages(c.messages)
}

// end ends the recording.
func (c *recordingConn) end() { c.isOver, c.buffer = true, nil }

// setMessages records the messages of a new connection in place of older ones. If a router refuses without an OPEN, its
// last known AS stays.
func (n *notes) setMessages(messages routerMessages) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if messages.asn == 0 {
		messages.asn = n.latest.messages.asn
	}
	n.latest.messages = messages
}

// asnOf returns the AS of an OPEN. It prefers the capability, because the field has two octets only (RFC 6793).
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
