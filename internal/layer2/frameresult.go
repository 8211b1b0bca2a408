package layer2

// frameResult tells what became of a received frame. Its names are metric labels.
type frameResult uint8

const (
	// answered: the frame is a question for an address of this node. A parser returns it for
	// every valid frame.
	answered frameResult = iota
	// sendFailed: the answer could not be sent.
	sendFailed
	// notOurs: the target is not announced on this link.
	notOurs
	// notRequest: the frame is no question, for example another station's answer.
	notRequest
	// claimed: a foreign machine claims an address of this node.
	claimed
	// bySpeaker: another speaker announces an address of this node, or answers for it.
	bySpeaker
	// lapsed: the lease has run out, so another node may own the address by then.
	lapsed
	// ownFrame: the sender is this link's own MAC, or claims an address for a MAC of this node.
	ownFrame
	// notToUs: the frame was sent to another station. A promiscuous link sees such frames.
	notToUs
	// tagged: the frame belongs to a VLAN, which is another link (IEEE 802.1Q).
	tagged
	// badLength: the frame is shorter than its protocol or its own length field requires.
	badLength
	// badFormat: a fixed field has a wrong value.
	badFormat
	// badSender: the sender address cannot be a source address.
	badSender
	// badTarget: the target cannot be a host's address (RFC 4861 section 7.1.1).
	badTarget
	// badHopLimit: a router may have forwarded the frame (RFC 4861 section 7.1.1).
	badHopLimit
	// badChecksum: the ICMPv6 checksum is wrong (RFC 4861 section 7.1.1).
	badChecksum
	// badOption: an option has length 0, is cut short, or is forbidden (RFC 4861 section 7.1.1).
	badOption
	// badKey: no speaker with one of our keys sent the echo.
	badKey

	frameResults
)

// String returns the metric label.
func (r frameResult) String() string {
	return [frameResults]string{
		answered:    "answered",
		sendFailed:  "sendFailed",
		notOurs:     "notOurs",
		notRequest:  "notRequest",
		claimed:     "claimed",
		bySpeaker:   "bySpeaker",
		lapsed:      "lapsed",
		ownFrame:    "ownFrame",
		notToUs:     "notToUs",
		tagged:      "tagged",
		badLength:   "badLength",
		badFormat:   "badFormat",
		badSender:   "badSender",
		badTarget:   "badTarget",
		badHopLimit: "badHopLimit",
		badChecksum: "badChecksum",
		badOption:   "badOption",
		badKey:      "badKey",
	}[r]
}
