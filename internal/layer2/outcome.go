package layer2

// outcome is what became of a received frame. Its names are metric labels.
type outcome uint8

const (
	// answered: a question for one of our addresses. A parser returns it for
	// each question that it finds nothing wrong with.
	answered outcome = iota
	// sendFailed: the answer could not be sent.
	sendFailed
	// notOurs: the target is not announced on this link.
	notOurs
	// notRequest: no question, for example another station's answer.
	notRequest
	// claimed: a machine that is not ours says that it has one of our addresses.
	claimed
	// bySpeaker: another speaker announces or answers for one of our addresses.
	bySpeaker
	// lapsed: the lease had run out, so that another node may have the address by now.
	lapsed
	// ownFrame: this link's own MAC is the sender.
	ownFrame
	// notToUs: sent to another station, seen for example on a promiscuous link.
	notToUs
	// tagged: belongs to a VLAN, which is another link's business (IEEE 802.1Q).
	tagged
	// badLength: shorter than its protocol or its own length field demands.
	badLength
	// badFormat: fields that are fixed have another value.
	badFormat
	// badSender: the sender's address cannot be a sender's.
	badSender
	// badTarget: the target cannot be anyone's address (RFC 4861 section 7.1.1).
	badTarget
	// badHopLimit: a router may have forwarded it (RFC 4861 section 7.1.1).
	badHopLimit
	// badChecksum: ICMPv6 checksum (RFC 4861 section 7.1.1).
	badChecksum
	// badOption: an option of length 0, cut short, or forbidden (RFC 4861 section 7.1.1).
	badOption

	outcomes
)

// String returns the metric label.
func (o outcome) String() string {
	return [outcomes]string{
		answered: "answered", sendFailed: "sendFailed", notOurs: "notOurs", notRequest: "notRequest",
		claimed: "claimed", bySpeaker: "bySpeaker", lapsed: "lapsed", ownFrame: "ownFrame", notToUs: "notToUs", tagged: "tagged",
		badLength: "badLength", badFormat: "badFormat", badSender: "badSender", badTarget: "badTarget",
		badHopLimit: "badHopLimit", badChecksum: "badChecksum", badOption: "badOption",
	}[o]
}
