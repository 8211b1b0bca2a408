package layer2

// outcome is the result of a received frame. Its names are metric labels.
type outcome uint8

const (
	// answered: a question for one of our addresses. A parser returns it for
	// every valid question.
	answered outcome = iota
	// sendFailed: the answer could not be sent.
	sendFailed
	// notOurs: the target is not announced on this link.
	notOurs
	// notRequest: not a question, for example another station's answer.
	notRequest
	// claimed: a foreign machine claims one of our addresses.
	claimed
	// bySpeaker: another speaker announces or answers for one of our addresses.
	bySpeaker
	// lapsed: the lease has run out, so another node may own the address by now.
	lapsed
	// ownFrame: the sender is this link's own MAC, or claims an address for a MAC of this node.
	ownFrame
	// notToUs: sent to another station, seen for example on a promiscuous link.
	notToUs
	// tagged: belongs to a VLAN, which is another link (IEEE 802.1Q).
	tagged
	// badLength: shorter than its protocol or its own length field requires.
	badLength
	// badFormat: a fixed field has a wrong value.
	badFormat
	// badSender: the sender address cannot be a source address.
	badSender
	// badTarget: the target cannot be a host's address (RFC 4861 section 7.1.1).
	badTarget
	// badHopLimit: a router may have forwarded it (RFC 4861 section 7.1.1).
	badHopLimit
	// badChecksum: ICMPv6 checksum (RFC 4861 section 7.1.1).
	badChecksum
	// badOption: an option of length 0, cut short, or forbidden (RFC 4861 section 7.1.1).
	badOption
	// badKey: an echo that no speaker with a key of ours sent.
	badKey

	outcomes
)

// String returns the metric label.
func (o outcome) String() string {
	return [outcomes]string{
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
	}[o]
}
