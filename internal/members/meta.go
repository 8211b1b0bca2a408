package members

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// A member's description of itself travels as memberlist's metadata with every sign of life, and has little room:
// octets, no field names. A link is flags, MAC, name and prefixes; of a prefix only the octets that its length covers.
// Behind all links follow their addresses, in the same order, as far as there is room, and behind these what the
// speaker says of the API server and of proxies. An older writer may end before either. A reader ignores flags that it does not know.
const (
	metaVersion = 1

	flagStopping = 1 << 0
	flagPartial  = 1 << 1
)

// linkFlags are those of a link, the lowest bit first.
func linkFlags(l *lb.Link) [3]*bool { return [...]*bool{&l.Default, &l.Refused, &l.Silent} }

// unfitFlags are the flags of what a node cannot do.
var unfitFlags = map[lb.Unfit]byte{
	lb.Booting:         1 << 2,
	lb.Unfiltered:      1 << 3,
	lb.PodsUnreached:   1 << 4,
	lb.SessionlessIPv4: 1 << 5,
	lb.SessionlessIPv6: 1 << 6,
	lb.RulesGone:       1 << 7,
}

// errMeta: the metadata is of another version. It is not forged, since members have the key.
var errMeta = errors.New("metadata of another version, or cut short")

// encodeMember writes as many links as fit into limit octets.
func encodeMember(m lb.Member, limit int) []byte {
	head := []byte{metaVersion, 0, 0}
	if m.Stopping {
		head[1] |= flagStopping
	}
	for unfit, flag := range unfitFlags {
		if m.Unfit.Has(unfit) {
			head[1] |= flag
		}
	}
	limit -= 1 + 4*len(m.LacksProxy) // for the API server and the proxies
	body := head
	for i, l := range m.Links {
		longer := appendLink(body, l)
		if len(longer)+i+1 > limit || i == 255 { // behind each link at least the number of its addresses
			m.Partial = true
			break
		}
		body = longer
		body[2]++
	}
	if m.Partial {
		body[1] |= flagPartial
	}
	body = append(appendAddresses(body, m.Links[:body[2]], limit), byte(m.API))
	for _, namespace := range m.LacksProxy {
		body = binary.BigEndian.AppendUint32(body, namespace)
	}
	return body
}

// appendAddresses appends the addresses of all links, without those that do not fit.
func appendAddresses(b []byte, links []lb.Link, limit int) []byte {
	for i, l := range links {
		addresses, _ := encodeAddresses(l.Addresses, math.MaxInt)
		if len(b)+len(addresses)+len(links)-i-1 > limit {
			addresses = []byte{0}
		}
		b = append(b, addresses...)
	}
	return b
}

func appendLink(b []byte, l lb.Link) []byte {
	var flags byte
	for bit, is := range linkFlags(&l) {
		if *is {
			flags |= 1 << bit
		}
	}
	b = append(b, flags)
	b = append(b, l.MAC[:]...)
	b = append(b, byte(len(l.Name)))
	b = append(b, l.Name...)
	b = append(b, byte(len(l.Prefixes)))
	for _, p := range l.Prefixes {
		b = append(b, byte(p.Addr().BitLen()/8), byte(p.Bits()))
		b = append(b, p.Masked().Addr().AsSlice()[:octets(p.Bits())]...)
	}
	return b
}

func octets(bits int) int { return (bits + 7) / 8 }

func decodeMember(b []byte) (lb.Member, error) {
	r := reader{b: b}
	version, flags, links := r.octet(), r.octet(), r.octet()
	m := lb.Member{Stopping: flags&flagStopping != 0, Partial: flags&flagPartial != 0}
	for unfit, flag := range unfitFlags {
		if flags&flag != 0 {
			m.Unfit |= unfit
		}
	}
	for range links {
		m.Links = append(m.Links, r.link())
		if r.bad {
			break
		}
	}
	for i := 0; i < len(m.Links) && len(r.b) > 0; i++ {
		m.Links[i].Addresses = r.addresses()
	}
	if len(r.b) > 0 {
		if api := lb.API(r.octet()); api <= lb.APIBehind {
			m.API = api
		}
	}
	for len(r.b) > 0 && !r.bad {
		m.LacksProxy = append(m.LacksProxy, binary.BigEndian.Uint32(r.take(4)))
	}
	if version != metaVersion || r.bad {
		return lb.Member{}, errMeta
	}
	return m, nil
}

// reader takes octets from the front, and remembers when there were too few.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if n > len(r.b) {
		r.b, r.bad = nil, true
		return make([]byte, n)
	}
	taken := r.b[:n]
	r.b = r.b[n:]
	return taken
}

func (r *reader) octet() byte { return r.take(1)[0] }

func (r *reader) link() lb.Link {
	flags := r.octet()
	l := lb.Link{MAC: [6]byte(r.take(6))}
	for bit, is := range linkFlags(&l) {
		*is = flags&(1<<bit) != 0
	}
	l.Name = string(r.take(int(r.octet())))
	for range r.octet() {
		if l.Prefixes = append(l.Prefixes, r.prefix()); r.bad {
			break
		}
	}
	return l
}

func (r *reader) addresses() []netip.Addr {
	var out []netip.Addr
	for range r.octet() {
		a, ok := netip.AddrFromSlice(r.take(int(r.octet())))
		if r.bad = r.bad || !ok; r.bad {
			break
		}
		out = append(out, a)
	}
	return out
}

func (r *reader) prefix() netip.Prefix {
	size, bits := int(r.octet()), int(r.octet())
	if size != 4 && size != 16 || bits > 8*size {
		r.bad = true
		return netip.Prefix{}
	}
	whole := make([]byte, size)
	copy(whole, r.take(octets(bits)))
	a, _ := netip.AddrFromSlice(whole)
	return netip.PrefixFrom(a, bits).Masked()
}
