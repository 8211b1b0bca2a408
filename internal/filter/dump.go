package filter

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// dumpBuffer is the most the kernel fills of a reader's buffer. Hash sets are listed by walking them from the
// start for each buffer full, so a small one costs much.
const dumpBuffer = 32 << 10

// dump asks for all objects of a type in our table and calls fn with the attributes of each. It uses a socket
// of its own: a listing that was given up leaves nothing behind.
func dump(typ int, flags netlink.HeaderFlags, of func(*attributes), fn func(*netlink.AttributeDecoder) error) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open nf_tables: %w", err)
	}
	defer unix.Close(fd)
	var b batch
	b.add(typ, flags, of)
	m := b.messages[0]
	const headerSize = 16
	m.Header.Length, m.Header.Sequence = uint32(headerSize+len(m.Data)), 1
	data, err := m.MarshalBinary()
	if err != nil {
		return fmt.Errorf("marshal request: %w", err)
	}
	if err := unix.Sendto(fd, data, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask nf_tables: %w", err)
	}
	buffer := make([]byte, dumpBuffer)
	for done := false; !done; {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("listen to nf_tables: %w", err)
		}
		if done, err = split(buffer[:n], flags&netlink.Dump == 0, fn); err != nil {
			return err
		}
	}
	return nil
}

// split calls fn for the messages of a datagram, and reports whether they are the last.
func split(data []byte, single bool, fn func(*netlink.AttributeDecoder) error) (done bool, err error) {
	const headerSize, generation = 16, 4
	for len(data) >= headerSize {
		var m netlink.Message
		size := nativeUint32(data)
		if size < headerSize || int(size) > len(data) {
			return true, errors.New("nf_tables sent half a message")
		}
		if err := m.UnmarshalBinary(data[:size]); err != nil {
			return true, fmt.Errorf("read message: %w", err)
		}
		data = data[min(len(data), int(size+3)&^3):]
		switch {
		case m.Header.Type == netlink.Done:
			return true, nil
		case m.Header.Type == netlink.Error && len(m.Data) >= 4:
			if errno := int32(nativeUint32(m.Data)); errno != 0 {
				return true, os.NewSyscallError("nf_tables", unix.Errno(-errno))
			}
			return true, nil
		case m.Header.Flags&netlink.DumpInterrupted != 0:
			return true, errChanged
		case len(m.Data) < generation:
			return true, errors.New("nf_tables sent a message without a header")
		}
		ad, err := decoder(m.Data[generation:])
		if err == nil {
			err = fn(ad)
		}
		if err != nil || single {
			return true, err
		}
	}
	return false, nil
}

// errChanged: the table changed while it was listed.
var errChanged = errors.New("the table changed meanwhile")

// tableHandle is NFTA_TABLE_HANDLE of linux/netfilter/nf_tables.h.
const tableHandle = 4

// handle returns what tells the table from one of the same name that somebody made later.
func handle() (uint64, error) {
	var h uint64
	err := dump(unix.NFT_MSG_GETTABLE, 0, nil, func(ad *netlink.AttributeDecoder) error {
		for ad.Next() {
			if ad.Type() == tableHandle {
				h = ad.Uint64()
			}
		}
		return ad.Err()
	})
	return h, err
}

// counted is an element and how many packets matched it.
type counted struct {
	element
	packets uint64
}

// list returns the elements of a set.
func (s set) list() ([]counted, error) {
	var list []counted
	ends := make(map[string]bool)
	err := dump(unix.NFT_MSG_GETSETELEM, netlink.Dump, func(a *attributes) { a.text(unix.NFTA_SET_ELEM_LIST_SET, s.name) },
		func(ad *netlink.AttributeDecoder) error {
			return walk(ad, unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(elements *netlink.AttributeDecoder) error {
				return walk(elements, unix.NFTA_LIST_ELEM, func(e *netlink.AttributeDecoder) error {
					one, end, err := decodeElement(e)
					if end {
						ends[one.key] = true
					} else {
						list = append(list, one)
					}
					return err
				})
			})
		})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", s.name, err)
	}
	if s.intervals() {
		pairEnds(list, ends)
	}
	return list, nil
}

// pairEnds gives each interval the end that is next behind it.
func pairEnds(list []counted, ends map[string]bool) {
	var sorted []string
	for end := range ends {
		sorted = append(sorted, end)
	}
	slices.Sort(sorted)
	for i := range list {
		at, found := slices.BinarySearch(sorted, list[i].key)
		if found {
			at++
		}
		if at < len(sorted) {
			list[i].value = sorted[at]
		}
	}
	slices.SortFunc(list, func(a, b counted) int { return strings.Compare(a.key, b.key) })
}
