package engine

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// logHandler reads GoBGP's log, the only place where GoBGP says why a session
// does not come up, and turns it into sentences. It passes on hardly any of it,
// since the watch logs changes.
type logHandler struct {
	notes *notes
	log   *slog.Logger
	// asn is the configured AS of the router.
	asn uint32
	// peer is set on the logger that GoBGP creates for its peer.
	peer netip.Addr
}

// Enabled is always true: GoBGP logs a failed dial at debug level.
func (logHandler) Enabled(context.Context, slog.Level) bool { return true }

// WithGroup does nothing: GoBGP uses no groups.
func (h logHandler) WithGroup(string) slog.Handler { return h }

// WithAttrs finds the peer of the logger.
func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if a.Key == "Key" {
			// Keys other than peers are no addresses; their loggers remain the server's.
			h.peer, _ = netip.ParseAddr(a.Value.String())
		}
	}
	return h
}

// Handle never fails.
func (h logHandler) Handle(ctx context.Context, r slog.Record) error {
	if !h.peer.IsValid() {
		h.log.LogAttrs(ctx, slog.LevelDebug, "GoBGP: "+r.Message)
		return nil
	}
	switch r.Message {
	case "Peer Up":
		h.notes.up()
	case "Peer Down":
		h.down(value(r, "Reason"))
	case "hold timer expired":
		h.notes.write("the router was silent for the hold time")
	case "failed to connect":
		h.notes.write("cannot connect: " + dialError(value(r, "Error")))
	case "outgoing connection IO error":
		h.notes.suggest(closed)
	case "outgoing connection closing due to hold timer expired in OPEN SENT state":
		h.notes.write("the router accepts the connection but sends no OPEN")
	case "sent notification":
		h.sent(r)
	case "received notification":
		h.notes.write(received(r))
	case "Session will be reset due to malformed BGP Header",
		"Session will be reset due to malformed BGP message",
		"Session will be reset due to malformed BGP update message":
		h.notes.write("the router sent a malformed message: " + value(r, "Error"))
	case "prefix limit reached":
		h.notes.write(fmt.Sprintf("the router sent more than %d routes; it need not send any: filter them there", maxPrefixes))
	case "state changed":
		// The router answered our OPEN with a NOTIFICATION, which GoBGP counts but does not show.
		if value(r, "old") == gobgp.BGP_FSM_OPENCONFIRM.String() && value(r, "reason") == "invalid-msg" {
			h.notes.write(refused)
		}
	default:
		if r.Level >= slog.LevelWarn {
			h.log.DebugContext(ctx, "GoBGP: "+r.Message, "error", value(r, "Error"))
		}
	}
	return nil
}

const refused = "the router refused this node's OPEN: check the AS that it expects of this node's address, and that no other daemon has a session from there"

const closed = "the router closed the connection before its OPEN: it may not know this node as a peer, or another daemon has a session from there"

// sent notes a sentence for a NOTIFICATION that GoBGP sent (codes of RFC 4271 section 4.5).
func (h logHandler) sent(r slog.Record) {
	switch code := value(r, "Code") + "/" + value(r, "Subcode"); code {
	case "2/2":
		h.notes.write(fmt.Sprintf("peer AS is not the configured %d", h.asn))
	case "2/3":
		h.notes.write("the router uses this node's router ID")
	case "2/6":
		h.notes.write("the router's hold time is below 3 s")
	case "5/1":
		h.notes.write(refused)
	case "6/3": // peer de-configured: as desired
	default:
		h.notes.suggest("closed by this node: " + notification(r))
	}
}

// received returns a sentence for a NOTIFICATION from the router.
func received(r slog.Record) string {
	text := "closed by the router: " + notification(r)
	if reason := value(r, "Communicated-Reason"); reason != "" {
		text += ", " + fmt.Sprintf("%q", reason) // RFC 9003
	}
	return text
}

// notification returns GoBGP's text for a code without the brackets: "cease, administrative shutdown".
func notification(r slog.Record) string {
	var code, subcode uint8
	if _, err := fmt.Sscan(value(r, "Code")+" "+value(r, "Subcode"), &code, &subcode); err != nil {
		return "an unknown error"
	}
	words := strings.FieldsFunc(gobgp.NewNotificationErrorCode(code, subcode).String(), func(c rune) bool { return c == '(' || c == ')' })
	if len(words) < 4 || words[3] == "undefined" {
		return fmt.Sprintf("%s (code %d, subcode %d)", words[1], code, subcode)
	}
	return words[1] + ", " + words[3]
}

// down notes a sentence for the end of a session, unless there is a better one already.
func (h logHandler) down(reason string) {
	switch reason {
	case "unknown", "dying": // as desired
		return
	case "read-failed", "write-failed", "graceful-restart":
		h.notes.suggest("the connection was lost")
	default:
		h.notes.suggest("session lost: " + reason)
	}
	h.notes.down()
}

// dialError returns the operating system's part of a dial error.
func dialError(text string) string {
	if i := strings.LastIndex(text, ": "); i >= 0 {
		return text[i+2:]
	}
	return text
}

func value(r slog.Record, key string) (text string) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == key {
			text = a.Value.String()
		}
		return a.Key != key
	})
	return text
}
