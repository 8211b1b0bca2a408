package engine

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// settleTime lets GoBGP finish a change of state: it logs the change just before.
const settleTime = 20 * time.Millisecond

// notes hold the facts that GoBGP reports only once, in its log. They cannot be read from GoBGP later.
type notes struct {
	// wake makes the engine read the state of the session.
	wake lb.Signal

	mu     sync.Mutex
	latest note
}

// note holds the last facts about the session.
type note struct {
	// text is a sentence about why the session is not up.
	text string
	// lost is the time when the session went down, with a monotonic clock; zero while it is up, and before the first
	// session.
	lost time.Time
	// up is the time when the session came up last. GoBGP has it in seconds only: a session may fall and come up again
	// in one second.
	up time.Time
	// ups and falls count how often the session came up and was lost.
	ups, falls uint64
	// messages are the router's messages before the session was up.
	messages routerMessages
}

// read returns the latest note.
func (n *notes) read() note {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.latest
}

// edit changes the note. A little later it wakes the engine to read the state.
func (n *notes) edit(f func(*note)) {
	n.mu.Lock()
	f(&n.latest)
	n.mu.Unlock()
	time.AfterFunc(settleTime, n.wake.Kick)
}

// logHandler reads GoBGP's log and notes its reports as sentences. Only in its log GoBGP reports why a session does not
// come up.
type logHandler struct {
	notes *notes
	// asn is the configured AS of the router, and localASN the AS of this node.
	asn, localASN uint32
	// signed reports whether the peer has a password.
	signed bool
	// peer is the address of the peer whose logger this is. GoBGP creates a logger for each peer.
	peer netip.Addr
}

// Enabled is always true: GoBGP logs a failed dial at debug level.
func (logHandler) Enabled(context.Context, slog.Level) bool { return true }

// WithGroup does nothing: GoBGP uses no groups.
func (h logHandler) WithGroup(string) slog.Handler { return h }

// WithAttrs sets the peer of the logger.
func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if a.Key == "Key" {
			// A Key of another kind is no address, and leaves peer invalid.
			h.peer, _ = netip.ParseAddr(a.Value.String())
		}
	}

	return h
}

// Handle never fails.
func (h logHandler) Handle(_ context.Context, r slog.Record) error {
	if h.peer.IsValid() && h.peer.String() != absent {
		h.notes.edit(func(n *note) { h.note(n, r) })
	}
	return nil
}

// note updates the note from a record. GoBGP's messages are matched by their text.
func (h logHandler) note(n *note, r slog.Record) {
	// suggest sets the sentence only if there is none: the first is closest to the cause.
	suggest := func(text string) {
		if n.text == "" {
			n.text = text
		}
	}

	switch r.Message {
	case "Peer Up":
		n.text = ""
		n.lost, n.up = time.Time{}, time.Now()
		n.ups++
	case "Peer Down":
		switch reason := value(r, "Reason").String(); reason {
		case "unknown", "dying": // as desired
			return
		case "read-failed", "write-failed", "graceful-restart":
			suggest("the connection was lost")
		default:
			suggest("session lost: " + reason)
		}
		n.lost = time.Now()
		n.falls++
	case "hold timer expired":
		n.text = "the router was silent for the hold time"
	case "failed to connect":
		n.text = h.dialError(value(r, "Error").String())
	case "outgoing connection IO error":
		suggest("the router closed the connection before its OPEN: " +
			"it may not know this node as a peer, or another daemon has a session from there")
	case "outgoing connection closing due to hold timer expired in OPEN SENT state":
		n.text = "the router accepts the connection but sends no OPEN"
	case "sent notification": // codes of RFC 4271 section 4.5
		switch value(r, "Code").String() + "/" + value(r, "Subcode").String() {
		case "2/2":
			n.text = h.wrongAS(n.messages)
		case "2/3":
			n.text = "the router uses this node's router ID"
		case "2/6":
			n.text = "the router's hold time is below 3 s"
		case "5/1":
			n.text = h.refusal(n.messages)
		case "6/3": // peer de-configured: as desired
		default:
			suggest("closed by this node: " + notification(codes(r)))
		}
	case "received notification":
		n.text = "closed by the router: " + notification(codes(r))
		reason := value(r, "Communicated-Reason").String() // RFC 9003
		if reason != "" {
			n.text += fmt.Sprintf(", %q", reason)
		}
		remedy := closedRemedy(codes(r))
		if remedy != "" {
			n.text += ": " + remedy
		}
	case "Session will be reset due to malformed BGP Header",
		"Session will be reset due to malformed BGP message",
		"Session will be reset due to malformed BGP update message":
		n.text = "the router sent a malformed message: " + value(r, "Error").String()
	case "prefix limit reached":
		n.text = fmt.Sprintf(
			"the router sent more than %d routes; it need not send any: filter them there",
			maxPrefixes,
		)
	case "state changed":
		// The router answered this node's OPEN with a NOTIFICATION, which GoBGP counts but does not log.
		if value(r, "old").String() == gobgp.BGP_FSM_OPENCONFIRM.String() &&
			value(r, "reason").String() == "invalid-msg" {
			n.text = h.refusal(n.messages)
		}
	}
}

// wrongAS returns the sentence about a router whose AS is not the configured one.
func (h logHandler) wrongAS(messages routerMessages) string {
	if messages.asn == 0 {
		return fmt.Sprintf("the router's AS is not %d: correct peerASN, or the router's own AS", h.asn)
	}
	return fmt.Sprintf("the router's AS is %d and not %d: correct peerASN, or the router's own AS", messages.asn, h.asn)
}

// refusal returns the sentence about a router that refused this node's OPEN.
func (h logHandler) refusal(messages routerMessages) string {
	text := "the router refused this node's OPEN"
	if messages.code != 0 {
		text += " with " + notification(messages.code, messages.subcode)
	}

	if messages.code == gobgp.BGP_ERROR_OPEN_MESSAGE_ERROR && messages.subcode == gobgp.BGP_ERROR_SUB_BAD_PEER_AS {
		return text + fmt.Sprintf(
			": it expects another AS than %d of this node's address: correct myASN, or the router",
			h.localASN,
		)
	}

	return text + ": check the AS that it expects of this node's address, " +
		"and that no other daemon has a session from there"
}

// closedRemedy returns the remedy for a NOTIFICATION that ended a session. It is empty if the code itself shows the
// remedy, or if only the router has more information.
func closedRemedy(code, subcode uint8) string {
	switch [2]uint8{code, subcode} {
	case [2]uint8{gobgp.BGP_ERROR_HOLD_TIMER_EXPIRED, 0}:
		return "it did not hear this node for the hold time: look for packet loss between the two"
	case [2]uint8{gobgp.BGP_ERROR_CEASE, gobgp.BGP_ERROR_SUB_MAXIMUM_NUMBER_OF_PREFIXES_REACHED}:
		return "raise its limit of routes from this node"
	case [2]uint8{gobgp.BGP_ERROR_CEASE, gobgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN}:
		return "enable the neighbor there"
	case [2]uint8{gobgp.BGP_ERROR_CEASE, gobgp.BGP_ERROR_SUB_PEER_DECONFIGURED},
		[2]uint8{gobgp.BGP_ERROR_CEASE, gobgp.BGP_ERROR_SUB_CONNECTION_REJECTED}:
		return "configure this node as a neighbor there"
	}

	return ""
}

// bfdDown is a subcode of Cease that GoBGP does not name (RFC 9384 section 4).
const bfdDown = 10

// codes returns the codes of a NOTIFICATION in GoBGP's log.
func codes(r slog.Record) (code, subcode uint8) {
	return uint8(value(r, "Code").Int64()), uint8(value(r, "Subcode").Int64())
}

// notification returns a name for a NOTIFICATION, with GoBGP's texts for its codes: "NOTIFICATION 6/2 (cease,
// administrative shutdown)".
func notification(code, subcode uint8) string {
	name := fmt.Sprintf("NOTIFICATION %d/%d", code, subcode)
	if code == gobgp.BGP_ERROR_CEASE && subcode == bfdDown {
		return name + " (cease, BFD down)"
	}

	text := gobgp.NewNotificationErrorCode(code, subcode).String()
	words := strings.FieldsFunc(text, func(c rune) bool { return c == '(' || c == ')' })
	if len(words) < 4 || words[3] == "undefined" {
		return name + " (" + words[1] + ")"
	}

	return name + " (" + words[1] + ", " + words[3] + ")"
}

// dialError returns a sentence with the operating system's part of an error.
func (h logHandler) dialError(text string) string {
	text = "cannot connect: " + text[strings.LastIndex(": "+text, ": "):]
	if h.signed && strings.HasSuffix(text, "timeout") {
		text += "; kernels drop what bears a wrong signature: the router may have another password, or none"
	}
	return text
}

// value returns an attribute of a record; an empty string if there is none.
func value(r slog.Record, key string) slog.Value {
	out := slog.StringValue("")
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == key {
			out = a.Value
		}

		return a.Key != key
	})

	return out
}
