package main

import (
	"bufio"
	"io"
	"net/netip"
	"strings"
	"testing"
)

func TestReadHeader(t *testing.T) {
	v4 := header{netip.MustParseAddrPort("192.0.2.1:56324"), netip.MustParseAddrPort("198.51.100.7:80")}
	v6 := header{netip.MustParseAddrPort("[2001:db8::1]:56324"), netip.MustParseAddrPort("[2001:db8::7]:443")}
	for name, tt := range map[string]struct {
		text string
		want header
	}{
		"version 1, IPv4": {"PROXY TCP4 192.0.2.1 198.51.100.7 56324 80\r\n", v4},
		"version 1, IPv6": {"PROXY TCP6 2001:db8::1 2001:db8::7 56324 443\r\n", v6},
		"version 2, IPv4": {signature + "\x21\x11\x00\x0c" + "\xc0\x00\x02\x01\xc6\x33\x64\x07\xdc\x04\x00\x50", v4},
		"version 2, IPv6, more behind the addresses": {signature + "\x21\x21\x00\x28" +
			"\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01" +
			"\x20\x01\x0d\xb8\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x07\xdc\x04\x01\xbb" +
			"\x04\x00\x01\x00", v6},
	} {
		r := bufio.NewReader(strings.NewReader(tt.text + "GET"))
		got, err := readHeader(r)
		if err != nil || got != tt.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if rest, _ := io.ReadAll(r); string(rest) != "GET" {
			t.Errorf("%s: %q is left", name, rest)
		}
	}
	for name, text := range map[string]string{
		"none": "GET / HTTP/1.1\r\n", "mixed": "PROXY TCP4 2001:db8::1 2001:db8::7 1 2\r\n",
		"endless": "PROXY " + strings.Repeat("x", 200),
		"local":   signature + "\x20\x00\x00\x00", "cut": signature + "\x21\x11\x00\x0c\x00",
		"short": signature + "\x21\x11\x00\x04\x00\x00\x00\x00", "empty": "",
	} {
		if got, err := readHeader(bufio.NewReader(strings.NewReader(text))); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
}
