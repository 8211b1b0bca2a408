package members

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// A member's description of itself travels as memberlist's metadata with every sign of life, and has little room:
// octets, no field names. It has, in this order:
//
//   - version, flags, number of links
//   - each link: flags, MAC, name and prefixes; of a prefix only the octets that its length covers
//   - the addresses of each link, as far as there is room
//   - the state of the API server
//   - a hash for each namespace without a proxy
//
// An older writer may end before either of the last three. A reader ignores flags that it does not know.
const (
	metaVersion = 1

	flagStopping = 1 << 0
	flagPartial  = 1 << 1
)

// linkFlags returns the flags of a link, the lowest bit first.
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

// errMeta reports metadata of another version. It is not forged, since members have the key.
var errMeta = errors.New("metadata of another version, or cut short")

// encodeMember writes a member with as many links as fit into limit octets.
func encodeMember(m lb.Member, limit int) []byte {
	body := []byte{metaVersion, 0, 0}
	if m.Stopping {
		body[1] |= flagStopping
	}

	for unfit, flag := range unfitFlags {
		if m.Unfit.Has(unfit) {
			body[1] |= flag
		}
	}

	limit -= 1 + 4*len(m.LacksProxy) // for the API server and the proxies
	for i, l := range m.Links {
		longer := appendLink(body, l)
		addressCounts := i + 1 // behind each link at least the number of its addresses
		if len(longer)+addressCounts > limit || i == math.MaxUint8 {
			m.Partial = true
			break
		}

		body = longer
		body[2]++
	}

	if m.Partial {
		body[1] |= flagPartial
	}

	body = appendAddresses(body, m.Links[:body[2]], limit)
	body = append(body, byte(m.API))
	for _, namespace := range m.LacksProxy {
		body = binary.BigEndian.AppendUint32(body, namespace)
	}

	return body
}

// appendAddresses appends the addresses of all links. A link whose addresses do not fit gets none.
func appendAddresses(b []byte, links []lb.Link, limit int) []byte {
	for i, l := range links {
		addresses, _ := encodeAddresses(l.Addresses, math.MaxInt)
		followingLinks := len(links) - i - 1
		if len(b)+len(addresses)+followingLinks > limit {
			addresses = []byte{0}
		}

		b = append(b, addresses...)
	}

	return b
}

// appendLink appends a link without its addresses.
func appendLink(b []byte, l lb.Link) []byte {
	var flags byte
	for bit, isSet := range linkFlags(&l) {
		if *isSet {
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
		b = append(b, p.Masked().Addr().AsSlice()[:octetCount(p.Bits())]...)
	}

	return b
}

// octetCount returns how many octets hold a number of bits.
func octetCount(bits int) int { return (bits + 7) / 8 }

// decodeMember reads what encodeMember wrote.
func decodeMember(b []byte) (lb.Member, error) {
	r := octetReader{rest: b}
	version := r.octet()
	flags := r.octet()
	links := r.octet()

	m := lb.Member{Stopping: flags&flagStopping != 0, Partial: flags&flagPartial != 0}
	for unfit, flag := range unfitFlags {
		if flags&flag != 0 {
			m.Unfit |= unfit
		}
	}

	for range links {
		m.Links = append(m.Links, r.link())
		if r.hasFailed {
			break
		}
	}

	for i := 0; i < len(m.Links) && len(r.rest) > 0; i++ {
		m.Links[i].Addresses = r.addresses()
	}

	if len(r.rest) > 0 {
		if api := lb.API(r.octet()); api <= lb.APIBehind {
			m.API = api
		}
	}

	for len(r.rest) > 0 && !r.hasFailed {
		m.LacksProxy = append(m.LacksProxy, binary.BigEndian.Uint32(r.take(4)))
	}

	if version != metaVersion || r.hasFailed {
		return lb.Member{}, errMeta
	}

	return m, nil
}

// octetReader takes octets from the front.
type octetReader struct {
	rest []byte
	// hasFailed reports whether octets were missing, or had no meaning.
	hasFailed bool
}

// take returns the next n octets, zeros if there are fewer.
func (r *octetReader) take(n int) []byte {
	if n > len(r.rest) {
		r.rest = nil
		r.hasFailed = true
		return make([]byte, n)
	}

	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *octetReader) octet() byte { return r.take(1)[0] }

func (r *octetReader) link() lb.Link {
	flags := r.octet()
	l := lb.Link{MAC: [6]byte(r.take(6))}
	for bit, flag := range linkFlags(&l) {
		*flag = flags&(1<<bit) != 0
	}

	l.Name = string(r.take(int(r.octet())))
	for range r.octet() {
		l.Prefixes = append(l.Prefixes, r.prefix())
		if r.hasFailed {
			break
		}
	}

	return l
}

func (r *octetReader) addresses() []netip.Addr {
	var out []netip.Addr
	for range r.octet() {
		a, ok := netip.AddrFromSlice(r.take(int(r.octet())))
		if !ok {
			r.hasFailed = true
		}

		if r.hasFailed {
			break
		}

		out = append(out, a)
	}

	return out
}

func (r *octetReader) prefix() netip.Prefix {
	size := int(r.octet())
	bits := int(r.octet())
	if size != 4 && size != 16 || bits > 8*size {
		r.hasFailed = true
		return netip.Prefix{}
	}

	address := make([]byte, size)
	copy(address, r.take(octetCount(bits)))
	a, _ := netip.AddrFromSlice(address)
	return netip.PrefixFrom(a, bits).Masked()
}
