package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// header is what a PROXY protocol header tells: the client's address, and the address that the client connected to.
type header struct{ from, to netip.AddrPort }

// signature begins a header of version 2, whose length is in its bytes 14 and 15 (section 2.2 of HAProxy's
// proxy-protocol.txt).
const signature = "\r\n\r\n\x00\r\nQUIT\n"

// maxLine is the length of the longest header of version 1.
const maxLine = 107

var errHeader = errors.New("no PROXY protocol header")

// readHeader reads a header of version 1 or 2 of TCP, and nothing after it.
func readHeader(r *bufio.Reader) (header, error) {
	if b, err := r.Peek(len(signature)); err == nil && string(b) == signature {
		return readBinary(r)
	}
	var line []byte
	for !strings.HasSuffix(string(line), "\r\n") {
		b, err := r.ReadByte()
		if err != nil || len(line) == maxLine {
			return header{}, errors.Join(errHeader, err)
		}
		line = append(line, b)
	}
	var family, from, to string
	var fromPort, toPort uint16
	_, err := fmt.Sscanf(string(line), "PROXY %s %s %s %d %d\r\n", &family, &from, &to, &fromPort, &toPort)
	a, err1 := netip.ParseAddr(from)
	b, err2 := netip.ParseAddr(to)
	if err := errors.Join(err, err1, err2); err != nil {
		return header{}, fmt.Errorf("%w: %q: %w", errHeader, line, err)
	}
	if want := map[string]bool{"TCP4": true, "TCP6": false}; a.Is4() != b.Is4() || want[family] != a.Is4() {
		return header{}, fmt.Errorf("%w: %q mixes families", errHeader, line)
	}
	return header{netip.AddrPortFrom(a, fromPort), netip.AddrPortFrom(b, toPort)}, nil
}

// readBinary reads a header of version 2.
func readBinary(r *bufio.Reader) (header, error) {
	var fixed [16]byte
	if _, err := io.ReadFull(r, fixed[:]); err != nil {
		return header{}, err
	}
	rest := make([]byte, binary.BigEndian.Uint16(fixed[14:]))
	if _, err := io.ReadFull(r, rest); err != nil {
		return header{}, err
	}
	size := map[byte]int{0x11: 4, 0x21: 16}[fixed[13]]
	if fixed[12] != 0x21 || size == 0 || len(rest) < 2*size+4 {
		return header{}, fmt.Errorf("%w: % x", errHeader, fixed)
	}
	// Each slice has the length of an address.
	from, _ := netip.AddrFromSlice(rest[:size])
	to, _ := netip.AddrFromSlice(rest[size : 2*size])
	ports := rest[2*size:]
	return header{
		netip.AddrPortFrom(from, binary.BigEndian.Uint16(ports)),
		netip.AddrPortFrom(to, binary.BigEndian.Uint16(ports[2:])),
	}, nil
}

// behind accepts connections that begin with a header, and closes all others.
type behind struct{ net.Listener }

func (l behind) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &headed{Conn: c, reader: bufio.NewReader(c)}, nil
}

// headed is a connection whose header is read with its first bytes, so that a slow client keeps none waiting.
type headed struct {
	net.Conn
	reader *bufio.Reader
	header *header
}

func (c *headed) Read(p []byte) (int, error) {
	if c.header == nil {
		// The server's own deadline is a minute.
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			return 0, err
		}
		h, err := readHeader(c.reader)
		if err != nil {
			c.Close()
			return 0, err
		}
		c.header = &h
	}
	return c.reader.Read(p)
}

// headerKey is the key of a connection in the contexts of its requests.
type headerKey struct{}

// listenBehind serves HTTP behind headers.
func listenBehind(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler(), ReadHeaderTimeout: time.Minute,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, headerKey{}, c) }}
	return server.Serve(behind{l})
}
