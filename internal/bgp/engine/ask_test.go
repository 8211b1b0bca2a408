package engine

import (
	"bytes"
	"encoding/binary"
	"testing"

	gobgp "github.com/osrg/gobgp/v4/pkg/packet/bgp"
)

// message is a BGP message of any content.
func message(length int, kind byte, body ...byte) []byte {
	m := bytes.Repeat([]byte{0xff}, 16)
	m = binary.BigEndian.AppendUint16(m, uint16(length))
	return append(append(m, kind), body...)
}

// openWith is an OPEN of AS 65001 with one optional parameter of these bytes.
func openWith(param ...byte) []byte {
	body := append([]byte{4, 0xfd, 0xe9, 0, 90, 192, 0, 2, 250, byte(len(param))}, param...)
	return message(gobgp.BGP_HEADER_LENGTH+len(body), gobgp.BGP_MSG_OPEN, body...)
}

// FuzzReadAS: reading a router's AS terminates whatever the router sends.
func FuzzReadAS(f *testing.F) {
	f.Add(openWith())
	f.Add(openWith(2, 6, 65, 4, 0, 1, 0, 0))
	f.Add(message(5, gobgp.BGP_MSG_OPEN))
	f.Add(message(19, gobgp.BGP_MSG_KEEPALIVE))
	f.Add(make([]byte, 5000))
	f.Fuzz(func(t *testing.T, b []byte) {
		asn, err := readAS(bytes.NewReader(b))
		if err != nil && asn != 0 {
			t.Errorf("AS %d and error %v", asn, err)
		}
	})
}

func TestReadAS(t *testing.T) {
	for _, tt := range []struct {
		name string
		b    []byte
		want uint32
	}{
		{"two octets", openWith(), 65001},
		{"four octets", openWith(2, 6, 65, 4, 0, 1, 0, 0), 65536},
		{"no OPEN", message(19, gobgp.BGP_MSG_KEEPALIVE), 0},
		{"length below the header", message(18, gobgp.BGP_MSG_OPEN), 0},
		{"nothing", nil, 0},
	} {
		if got, err := readAS(bytes.NewReader(tt.b)); got != tt.want || (err == nil) != (tt.want != 0) {
			t.Errorf("%s: AS %d, %v; want %d", tt.name, got, err, tt.want)
		}
	}
}
