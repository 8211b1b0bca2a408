package members

import (
	"crypto/rand"
	"encoding/binary"
	"math"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
)

// Owner answers questions of other speakers about addresses, and receives their answers. Its methods must not block.
type Owner interface {
	// Owns reports which of the addresses this node owns, and how long ago it last heard the API server. leaves reports
	// that the asker is about to leave them to their owner.
	Owns(addrs []netip.Addr, leaves bool) (owns []bool, age time.Duration)
	// Answered receives the answer of a member to a question of this node.
	Answered(Answer)
}

// Answer reports which of the addresses in a question a member owns.
type Answer struct {
	From      string
	Addresses []netip.Addr
	// Leaves reports that this node asked because it leaves them to that member.
	Leaves bool
	// Owns has a claim for each of Addresses.
	Owns []bool
	// Age is how long before the answer the member last heard the API server.
	Age time.Duration
}

// A question is version, kind, nonce, name of the asker and addresses. Its answer is version, kind, nonce, milliseconds
// and a bit for each address. memberlist encrypts both with the key of the membership. A speaker that knows no such
// messages ignores them.
const (
	questionVersion = 1

	kindQuestion = 0
	// kindLeaving is a question about addresses that the asker leaves to their owner.
	kindLeaving = 1
	kindAnswer  = 2

	nonceLen = 8
	// maxQuestion is how many octets of addresses a message has: a packet must not be fragmented.
	maxQuestion = 1100
	// answerTime is how long this node waits for an answer.
	answerTime = 2 * time.Second
)

// pendingQuestion is a question that waits for an answer.
type pendingQuestion struct {
	// answer is the answer without its result.
	answer  Answer
	askedAt time.Time
}

// Ask asks a member which of the addresses it owns. leaves reports that this node is about to leave them to that
// member. The answer goes to Config.Owner, if one comes: a nonce, used once, ties it to the question. Many addresses
// become several questions.
func (m *Members) Ask(member string, addrs []netip.Addr, leaves bool) {
	at := time.Now()
	for len(addrs) > 0 {
		var nonce [nonceLen]byte
		_, _ = rand.Read(nonce[:]) // never fails
		message, n := m.encodeQuestion(nonce, addrs, leaves)
		question := pendingQuestion{answer: Answer{From: member, Addresses: addrs[:n], Leaves: leaves}, askedAt: at}
		m.addPending(binary.BigEndian.Uint64(nonce[:]), question)
		m.send(member, message)
		addrs = addrs[n:]
	}
}

// encodeQuestion encodes a question about the first n of addrs, as many as fit.
func (m *Members) encodeQuestion(nonce [nonceLen]byte, addrs []netip.Addr, leaves bool) (message []byte, n int) {
	kind := byte(kindQuestion)
	if leaves {
		kind = kindLeaving
	}

	message = append([]byte{questionVersion, kind}, nonce[:]...)
	message = append(message, byte(len(m.config.NodeName)))
	message = append(message, m.config.NodeName...)
	body, n := encodeAddresses(addrs, maxQuestion)

	return append(message, body...), n
}

// encodeAddresses encodes the first n of addrs, as many as fit.
func encodeAddresses(addrs []netip.Addr, limit int) (b []byte, n int) {
	b = []byte{0}
	for n < len(addrs) && n < math.MaxUint8 && len(b) < limit-16 {
		b = append(b, byte(addrs[n].BitLen()/8))
		b = append(b, addrs[n].AsSlice()...)
		n++
	}

	b[0] = byte(n)
	return b, n
}

// addPending adds a pending question, and removes questions that were not answered in time.
func (m *Members) addPending(nonce uint64, q pendingQuestion) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for other, before := range m.pending {
		if q.askedAt.Sub(before.askedAt) > answerTime {
			delete(m.pending, other)
		}
	}

	m.pending[nonce] = q
}

// takePending returns the question that an answer is for, once.
func (m *Members) takePending(nonce uint64, at time.Time) (Answer, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	q, isKnown := m.pending[nonce]
	delete(m.pending, nonce)
	return q.answer, isKnown && at.Sub(q.askedAt) <= answerTime
}

// send sends a message to a member. Gossip may have lost the member for some seconds after a fault of the network, in
// which two nodes may answer for one address: then the message goes to the address of its speaker. A lost message is
// not repeated: the caller asks again.
func (m *Members) send(member string, message []byte) {
	m.mu.Lock()
	list := m.list
	address, isGossiping := m.addresses[member]
	if !isGossiping {
		address = m.speakers[member]
	}
	m.mu.Unlock()
	if list == nil || !address.IsValid() {
		return
	}

	to := memberlist.Address{Addr: netip.AddrPortFrom(address, m.config.GossipPort).String(), Name: member}
	_ = list.SendToAddress(to, message)
}

// receive handles a message of another member.
func (m *Members) receive(message []byte) {
	r := octetReader{rest: message}
	version := r.octet()
	kind := r.octet()
	nonce := r.take(nonceLen)
	if r.hasFailed || version != questionVersion || m.config.Owner == nil {
		return
	}

	switch kind {
	case kindQuestion, kindLeaving:
		m.receiveQuestion(r, nonce, kind == kindLeaving)
	case kindAnswer:
		m.receiveAnswer(r, nonce)
	}
}

// receiveQuestion answers a question, of which r has the rest.
func (m *Members) receiveQuestion(r octetReader, nonce []byte, leaves bool) {
	asker := string(r.take(int(r.octet())))
	addrs := r.addresses()
	if r.hasFailed {
		return
	}

	owns, age := m.config.Owner.Owns(addrs, leaves)
	m.send(asker, encodeAnswer(nonce, owns, age))
}

// receiveAnswer passes an answer on, of which r has the rest, unless it answers no pending question.
func (m *Members) receiveAnswer(r octetReader, nonce []byte) {
	milliseconds := binary.BigEndian.Uint32(r.take(4))
	a, isKnown := m.takePending(binary.BigEndian.Uint64(nonce), time.Now())
	bits := r.take(octetCount(len(a.Addresses)))
	if r.hasFailed || !isKnown {
		return
	}

	a.Age = time.Duration(milliseconds) * time.Millisecond
	for i := range a.Addresses {
		a.Owns = append(a.Owns, bits[i/8]&(1<<(i%8)) != 0)
	}

	m.config.Owner.Answered(a)
}

func encodeAnswer(nonce []byte, owns []bool, age time.Duration) []byte {
	b := append([]byte{questionVersion, kindAnswer}, nonce...)
	b = binary.BigEndian.AppendUint32(b, uint32(min(age.Milliseconds(), math.MaxUint32)))
	bits := make([]byte, octetCount(len(owns)))
	for i, isOwned := range owns {
		if isOwned {
			bits[i/8] |= 1 << (i % 8)
		}
	}

	return append(b, bits...)
}
