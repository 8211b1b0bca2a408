package layer2

import (
	"encoding/binary"
	"math"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/rt"
)

// An echo is a question to the speaker behind a MAC, and its answer. It exists because a switch may answer ARP and
// Neighbor Discovery for a machine that is dead: EVPN's ARP suppression (RFC 7432 section 10), access points. The
// answer shows that the speaker runs, may act, and would answer others for the address on this link at this moment.
// An echo about the unspecified address shows only that echoes get through, and an echo about lb.Hearing that the
// speaker hears another machine on its link of the heartbeats. The answer to a contest shows that the speaker owns the
// address, and has precedence over the asker.
const (
	etherTypeEcho = unix.ETH_P_802_EX1 // Local Experimental EtherType 1 (IEEE 802)

	echoVersion  = 1
	echoQuestion = 1
	echoAnswer   = 2
	// contestBit in a kind makes the echo a contest. Older speakers drop that.
	contestBit = 4
)

// Offsets in a frame. The tag authenticates all octets before it, both MACs too, so a forwarded echo is not accepted.
const (
	offPrefix  = ethernetLen
	offVersion = offPrefix + rt.PrefixLen
	offKind    = offVersion + 1
	offNonce   = offKind + 1
	offAddress = offNonce + 8
	offTag     = offAddress + 16
	echoLen    = offTag + rt.TagLen

	// The question of a contest has flags and the age in milliseconds before its tag.
	offContestFlags    = offTag
	offAPIAge          = offContestFlags + 1
	offContestTag      = offAPIAge + 4
	contestQuestionLen = offContestTag + rt.TagLen
)

// Flags of the question of a contest.
const (
	flagHeldDown = 1 << iota
	// flagAnswers: the asker still answers for the address.
	flagAnswers
)

// echoCodec makes and reads echoes. It is safe for concurrent use.
type echoCodec struct {
	mu sync.Mutex
	// seals has one seal for each key. The first one closes frames.
	seals []*rt.Seal
}

// protocol returns the protocol of echoes.
func (e *echoCodec) protocol() protocol {
	return protocol{
		index:     echoIndex,
		name:      "echo",
		etherType: etherTypeEcho,
		filter:    func(addressCover) []bpf.Instruction { return echoesOf(echoQuestion) },
		parse:     e.parse,
		answer: func(l *lb.Interface, _ lb.MAC, m message) []byte {
			kind := byte(echoAnswer)
			if m.isContest {
				kind |= contestBit
			}

			return e.encode(l, m.mac, kind, m.nonce, m.target)
		},
		question: func(l *lb.Interface, to lb.MAC, addr netip.Addr) []byte {
			return e.encode(l, to, echoQuestion, rt.Random(), addr)
		},
		answers: echoesOf(echoAnswer),
	}
}

// echoesOf passes echoes of one kind to this machine only, contests too.
func echoesOf(kind uint32) []bpf.Instruction {
	return toUs(append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: offVersion, Size: 2},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xffff &^ contestBit},
		skipIf(bpf.JumpEqual, echoVersion<<8|kind, 1),
		bpf.RetConstant{Val: 0},
	}, passUnicast()...)...)
}

// setKeys replaces the keys.
func (e *echoCodec) setKeys(keys [][]byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seals = rt.NewSeals(keys, "echo")
}

// contest makes the question of a contest from a node with this precedence. answers reports whether that node answers
// for the address.
func (e *echoCodec) contest(l *lb.Interface, to lb.MAC, addr netip.Addr, own lb.Precedence, answers bool) []byte {
	flags := byte(0)
	if own.HeldDown {
		flags |= flagHeldDown
	}

	if answers {
		flags |= flagAnswers
	}

	age := uint32(min(own.APIAge.Milliseconds(), math.MaxUint32))
	detail := binary.BigEndian.AppendUint32([]byte{flags}, age)
	return e.encode(l, to, echoQuestion|contestBit, rt.Random(), addr, detail...)
}

// encode makes an echo with the first key. It returns nil without a key. The question of a contest has a detail.
func (e *echoCodec) encode(
	l *lb.Interface,
	to lb.MAC,
	kind byte,
	nonce uint64,
	addr netip.Addr,
	detail ...byte,
) []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.seals) == 0 {
		return nil
	}

	seal := e.seals[0]
	address := addr.As16()
	frame := ethernetHeader(to, l.MAC, etherTypeEcho)
	frame = binary.BigEndian.AppendUint64(frame, seal.Prefix)
	frame = append(frame, echoVersion, kind)
	frame = binary.BigEndian.AppendUint64(frame, nonce)
	frame = append(frame, address[:]...)
	frame = append(frame, detail...)

	return seal.Close(frame)
}

// nonceOf returns the nonce of an echo.
func nonceOf(frame []byte) uint64 {
	return binary.BigEndian.Uint64(frame[offNonce:])
}

// parse reads an echo. A frame without the prefix of one of our keys costs only a comparison.
func (e *echoCodec) parse(frame []byte, own lb.MAC) (message, frameResult) {
	_, result := header(frame, etherTypeEcho, own)
	length := lengthOf(frame)
	switch {
	case result != answered:
		return message{}, result
	case lb.MAC(frame[offDestination:offSource]) != own:
		return message{}, notToUs
	case len(frame) < length:
		return message{}, badLength
	case frame[offVersion] != echoVersion:
		return message{}, badFormat
	case kindOf(frame) != echoQuestion && kindOf(frame) != echoAnswer:
		return message{}, badFormat
	case nonceOf(frame) == 0:
		return message{}, badFormat
	case !e.isAuthentic(frame[:length]):
		return message{}, badKey
	}

	m := message{
		mac:       lb.MAC(frame[offSource:offEtherType]),
		nonce:     nonceOf(frame),
		isUnicast: true,
		isContest: frame[offKind]&contestBit != 0,
	}
	addr := netip.AddrFrom16([16]byte(frame[offAddress:offTag])).Unmap()
	if kindOf(frame) == echoQuestion {
		m.target = addr
		if m.isContest {
			m.readContest(frame)
		}

		return m, answered
	}

	m.claimed = addr
	m.isReply = true

	return m, answered
}

// kindOf returns the kind of an echo, whether it is a contest or not.
func kindOf(frame []byte) byte {
	return frame[offKind] &^ contestBit
}

// lengthOf returns the length of a frame if it is an echo.
func lengthOf(frame []byte) int {
	if len(frame) > offKind && frame[offKind] == echoQuestion|contestBit {
		return contestQuestionLen
	}
	return echoLen
}

// readContest reads what only the question of a contest has.
func (m *message) readContest(frame []byte) {
	flags := frame[offContestFlags]
	age := binary.BigEndian.Uint32(frame[offAPIAge:])
	m.askerAnswers = flags&flagAnswers != 0
	m.precedence = lb.Precedence{
		HeldDown: flags&flagHeldDown != 0,
		APIAge:   time.Duration(age) * time.Millisecond,
	}
}

// answersAbout reports whether this node answers an echo about an address that it does not announce.
func (r *Responder) answersAbout(target netip.Addr) bool {
	if target != lb.Hearing && target != lb.NotHearing {
		return target.IsUnspecified()
	}

	if r.config.ReceivesHeartbeats == nil || !r.lapses.isValid() {
		return false
	}

	return r.config.ReceivesHeartbeats() == (target == lb.Hearing)
}

// isAuthentic reports whether a frame was closed with one of our keys.
func (e *echoCodec) isAuthentic(frame []byte) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := rt.Open(e.seals, frame, offPrefix)
	return ok
}
