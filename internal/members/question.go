package members

import (
	"crypto/rand"
	"encoding/binary"
	"math"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
)

// Owner answers what other speakers ask about addresses, and hears their answers. Its methods must not block.
type Owner interface {
	// Owns reports which of the addresses this node owns, and how long ago it last heard the API server. The asker may
	// be about to leave them to their owner.
	Owns(addrs []netip.Addr, leaves bool) (owns []bool, age time.Duration)
	// Answered takes the answer of a member to a question of this node.
	Answered(Answer)
}

// Answer says which of the addresses that it was asked about a member owns.
type Answer struct {
	From      string
	Addresses []netip.Addr
	// Leaves: this node asked because it leaves them to that member.
	Leaves bool
	Owns   []bool
	// Age is how long before the answer the member last heard the API server.
	Age time.Duration
}

// A question is version, kind, nonce, name of the asker and addresses; its answer is version, kind, nonce, milliseconds
// and a bit for each address. memberlist encrypts both with the key of the membership. A speaker that knows no such
// messages ignores them.
const (
	questionVersion = 1

	kindQuestion = 0
	// kindLeaving is a question about addresses that the asker leaves to their owner.
	kindLeaving = 1
	kindAnswer  = 2

	// maxQuestion is how many octets of addresses a message has: a packet must not be fragmented.
	maxQuestion = 1100
	// answerTime is how long an answer is waited for.
	answerTime = 2 * time.Second
)

// asked is a question that waits for an answer.
type asked struct {
	answer Answer
	at     time.Time
}

// Ask asks a member which of the addresses it owns. The answer goes to Config.Owner, if there is one: a nonce, used
// once, ties it to the question. Leaves: this node is about to leave them to that member.
func (m *Members) Ask(member string, addrs []netip.Addr, leaves bool) {
	now := time.Now()
	for len(addrs) > 0 {
		head := []byte{questionVersion, kindQuestion}
		if leaves {
			head[1] = kindLeaving
		}
		head = append(head, make([]byte, 8)...)
		_, _ = rand.Read(head[2:]) // never fails
		head = append(append(head, byte(len(m.config.NodeName))), m.config.NodeName...)
		body, n := encodeAddresses(addrs, maxQuestion)
		m.expect(
			binary.BigEndian.Uint64(head[2:]),
			asked{Answer{From: member, Addresses: addrs[:n], Leaves: leaves}, now},
		)
		m.tell(member, append(head, body...))
		addrs = addrs[n:]
	}
}

// encodeAddresses encodes the first n of addresses, as many as fit.
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

// expect remembers a question, and forgets those that were not answered.
func (m *Members) expect(nonce uint64, a asked) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for other, before := range m.asked {
		if a.at.Sub(before.at) > answerTime {
			delete(m.asked, other)
		}
	}
	m.asked[nonce] = a
}

// take returns the question that an answer is for, once.
func (m *Members) take(nonce uint64, now time.Time) (Answer, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, known := m.asked[nonce]
	delete(m.asked, nonce)
	return a.answer, known && now.Sub(a.at) <= answerTime
}

// tell sends a message to a member. Gossip may have lost the member for some seconds after a fault of the network, in
// which two nodes may answer for one address: then the message goes to the address of its speaker.
func (m *Members) tell(member string, message []byte) {
	m.mu.Lock()
	list := m.list
	to, isGossiping := m.addresses[member]
	if !isGossiping {
		to = m.join[member]
	}
	m.mu.Unlock()
	if list == nil || !to.IsValid() {
		return
	}
	// One that is lost is asked again.
	_ = list.SendToAddress(
		memberlist.Address{Addr: netip.AddrPortFrom(to, m.config.GossipPort).String(), Name: member},
		message,
	)
}

// hear handles a message of another member.
func (m *Members) hear(message []byte) {
	r := reader{b: message}
	version, kind, nonce := r.octet(), r.octet(), r.take(8)
	if r.bad || version != questionVersion || m.config.Owner == nil {
		return
	}
	switch kind {
	case kindQuestion, kindLeaving:
		name := string(r.take(int(r.octet())))
		addrs := r.addresses()
		if !r.bad {
			owns, age := m.config.Owner.Owns(addrs, kind == kindLeaving)
			m.tell(name, encodeAnswer(nonce, owns, age))
		}
	case kindAnswer:
		age := time.Duration(binary.BigEndian.Uint32(r.take(4))) * time.Millisecond
		a, known := m.take(binary.BigEndian.Uint64(nonce), time.Now())
		bits := r.take((len(a.Addresses) + 7) / 8)
		if r.bad || !known {
			return
		}
		a.Age = age
		for i := range a.Addresses {
			a.Owns = append(a.Owns, bits[i/8]&(1<<(i%8)) != 0)
		}
		m.config.Owner.Answered(a)
	}
}

func encodeAnswer(nonce []byte, owns []bool, age time.Duration) []byte {
	b := append([]byte{questionVersion, kindAnswer}, nonce...)
	b = binary.BigEndian.AppendUint32(b, uint32(min(age.Milliseconds(), math.MaxUint32)))
	bits := make([]byte, (len(owns)+7)/8)
	for i, is := range owns {
		if is {
			bits[i/8] |= 1 << (i % 8)
		}
	}
	return append(b, bits...)
}
