package layer2

import (
	"encoding/binary"
	"net/netip"
	"sync"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

// An echo is a question to the speaker behind a MAC, and its answer. It exists because a switch may answer ARP and
// Neighbor Discovery for a machine that is dead: EVPN's ARP suppression (RFC 7432 section 10), access points. The
// answer shows that the speaker runs, may act, and would answer others for the address on this link at this moment.
// About the unspecified address it shows only that echoes get through, and about lb.Hearing that the speaker hears
// another machine on its link of the heartbeats.
const (
	etherTypeEcho = unix.ETH_P_802_EX1 // Local Experimental EtherType 1 (IEEE 802)

	echoVersion  = 1
	echoQuestion = 1
	echoAnswer   = 2
)

// Offsets in a frame. The tag authenticates all before it, both MACs too: what another machine forwards is worth
// nothing.
const (
	offPrefix  = ethernetLen
	offVersion = offPrefix + rt.PrefixLen
	offKind    = offVersion + 1
	offNonce   = offKind + 1
	offAddress = offNonce + 8
	offTag     = offAddress + 16
	echoLen    = offTag + rt.TagLen
)

// echoes makes and reads echoes.
type echoes struct {
	mu sync.Mutex
	// seals of the keys; the first one closes.
	seals []*rt.Seal
}

func (e *echoes) protocol() protocol {
	return protocol{
		number:    echo,
		name:      "echo",
		etherType: etherTypeEcho,
		filter:    func(cover) []bpf.Instruction { return echoesOf(echoQuestion) },
		parse:     e.parse,
		answer: func(l *lb.Interface, _ lb.MAC, m message) []byte {
			return e.frame(l, m.mac, echoAnswer, m.nonce, m.target)
		},
		question: func(l *lb.Interface, to lb.MAC, addr netip.Addr) []byte {
			return e.frame(l, to, echoQuestion, rt.Random(), addr)
		},
		answers: echoesOf(echoAnswer),
	}
}

// echoesOf passes echoes of one kind to this machine only.
func echoesOf(kind uint32) []bpf.Instruction {
	return toUs(append(only(offVersion, 2, echoVersion<<8|kind), alone()...)...)
}

func (e *echoes) setKeys(keys [][]byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seals = rt.NewSeals(keys, "echo")
}

func (e *echoes) frame(l *lb.Interface, to lb.MAC, kind byte, nonce uint64, addr netip.Addr) []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.seals) == 0 {
		return nil
	}

	address := addr.As16()
	b := binary.BigEndian.AppendUint64(ethernetHeader(to, l.MAC, etherTypeEcho), e.seals[0].Prefix)
	b = binary.BigEndian.AppendUint64(append(b, echoVersion, kind), nonce)
	return e.seals[0].Close(append(b, address[:]...))
}

// nonceOf returns the nonce of an echo.
func nonceOf(frame []byte) uint64 { return binary.BigEndian.Uint64(frame[offNonce:]) }

// parse reads an echo. What does not begin like one of ours costs a comparison.
func (e *echoes) parse(frame []byte, own lb.MAC) (message, outcome) {
	_, out := header(frame, etherTypeEcho, own)
	switch {
	case out != answered:
		return message{}, out
	case lb.MAC(frame[offDestination:offSource]) != own:
		return message{}, notToUs
	case len(frame) < echoLen:
		return message{}, badLength
	case frame[offVersion] != echoVersion ||
		frame[offKind] != echoQuestion &&
			frame[offKind] != echoAnswer ||
		nonceOf(frame) == 0:
		return message{}, badFormat
	case !e.opens(frame[:echoLen]):
		return message{}, badKey
	}

	m := message{mac: lb.MAC(frame[offSource:offEtherType]), nonce: nonceOf(frame), direct: true}
	addr := netip.AddrFrom16([16]byte(frame[offAddress:offTag])).Unmap()
	if frame[offKind] == echoQuestion {
		m.target = addr
	} else {
		m.claimed, m.reply = addr, true
	}

	return m, answered
}

// answersAbout reports whether a speaker answers an echo about this address, which is none that it announces.
func (r *Responder) answersAbout(target netip.Addr) bool {
	switch target {
	case lb.Hearing, lb.NotHearing:
		isKnown := r.config.Hears != nil && r.lease.valid()
		return isKnown && r.config.Hears() == (target == lb.Hearing)
	}
	return target.IsUnspecified()
}

// opens reports whether the frame was closed with one of our keys.
func (e *echoes) opens(frame []byte) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := rt.Open(e.seals, frame, offPrefix)
	return ok
}
