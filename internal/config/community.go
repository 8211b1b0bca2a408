package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// parseCommunity reads "65000:100" (RFC 1997: two numbers of 16 bits) or
// "large:64500:1:2" (RFC 8092: three of 32 bits).
func parseCommunity(s string) (lb.Community, error) {
	numbers, large := strings.CutPrefix(s, "large:")
	parts := strings.Split(numbers, ":")
	count, bits := 2, 16
	if large {
		count, bits = 3, 32
	}
	n := make([]uint32, 3)
	if len(parts) != count {
		return lb.Community{}, errCommunity(s)
	}
	for i, part := range parts {
		v, err := strconv.ParseUint(part, 10, bits)
		if err != nil {
			return lb.Community{}, errCommunity(s)
		}
		n[i] = uint32(v)
	}
	return lb.Community{Large: large, A: n[0], B: n[1], C: n[2]}, nil
}

func errCommunity(s string) error {
	return fmt.Errorf("%q is not a community: write two numbers up to 65535 (65000:100), or large: and three up to 4294967295 (large:64500:1:2)", s)
}
