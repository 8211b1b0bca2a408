package filter

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// decoder reads attributes of nf_tables, whose numbers are in network order.
func decoder(data []byte) (*netlink.AttributeDecoder, error) {
	ad, err := netlink.NewAttributeDecoder(data)
	if err == nil {
		ad.ByteOrder = binary.BigEndian
	}
	return ad, err
}

func nativeUint32(data []byte) uint32 { return binary.NativeEndian.Uint32(data) }

// walk calls fn with what is nested in each attribute of a type.
func walk(ad *netlink.AttributeDecoder, typ uint16, fn func(*netlink.AttributeDecoder) error) error {
	for ad.Next() {
		if ad.Type() != typ {
			continue
		}
		inner, err := decoder(ad.Bytes())
		if err == nil {
			err = fn(inner)
		}
		if err != nil {
			return err
		}
	}
	return ad.Err()
}

// decodeElement reads an element; end: it is where an interval ends.
func decodeElement(ad *netlink.AttributeDecoder) (e counted, end bool, err error) {
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_KEY:
			ad.Nested(func(n *netlink.AttributeDecoder) error { e.key = data(n); return nil })
		case unix.NFTA_SET_ELEM_DATA:
			ad.Nested(func(n *netlink.AttributeDecoder) error { e.value = data(n); return nil })
		case unix.NFTA_SET_ELEM_FLAGS:
			end = ad.Uint32()&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_EXPR:
			ad.Nested(func(n *netlink.AttributeDecoder) error { e.packets = packets(n); return nil })
		}
	}
	return e, end, ad.Err()
}

// data reads a value, or the chain that a verdict goes to.
func data(ad *netlink.AttributeDecoder) (value string) {
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_DATA_VALUE:
			value = string(ad.Bytes())
		case unix.NFTA_DATA_VERDICT:
			ad.Nested(func(n *netlink.AttributeDecoder) error {
				for n.Next() {
					if n.Type() == unix.NFTA_VERDICT_CHAIN {
						value = n.String()
					}
				}
				return nil
			})
		}
	}
	return value
}

// packets reads a counter.
func packets(ad *netlink.AttributeDecoder) (n uint64) {
	for ad.Next() {
		if ad.Type() == unix.NFTA_EXPR_DATA {
			ad.Nested(func(counter *netlink.AttributeDecoder) error {
				for counter.Next() {
					if counter.Type() == unix.NFTA_COUNTER_PACKETS {
						n = counter.Uint64()
					}
				}
				return nil
			})
		}
	}
	return n
}
