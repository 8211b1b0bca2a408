package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// wellKnown are the names of IANA's registry of well-known communities that a speaker may send.
var wellKnown = map[string]lb.Community{
	"graceful-shutdown":   {A: 65535, B: 0},     // RFC 8326
	"blackhole":           {A: 65535, B: 666},   // RFC 7999
	"no-export":           {A: 65535, B: 65281}, // RFC 1997
	"no-advertise":        {A: 65535, B: 65282}, // RFC 1997
	"no-export-subconfed": {A: 65535, B: 65283}, // RFC 1997
	"no-peer":             {A: 65535, B: 65284}, // RFC 3765
}

// aliases are the communities with a name.
type aliases map[string]lb.Community

// compileAliases reads the names. The oldest meaning of a name stands.
func compileAliases(r *report, objects []*v1beta1.Community) aliases {
	out := maps.Clone(aliases(wellKnown))
	from := map[string]string{}
	for _, o := range oldestFirst(objects) {
		object := lb.Object{Kind: KindCommunity, Name: o.Name}
		for i, alias := range o.Spec.Communities {
			c, err := parseCommunity(alias.Value)
			is, known := out[alias.Name]
			switch {
			case err != nil:
				r.fault(object, lb.InvalidCommunity, "spec.communities[%d] is not known: %v", i, err)
			case known && from[alias.Name] == "":
				r.fault(object, lb.DuplicateAlias, "spec.communities[%d] is not used: %s is a well-known community, %s", i, alias.Name, is)
			case known && is != c:
				r.fault(object, lb.DuplicateAlias, "spec.communities[%d] is not used: in Community %q, which is older, %s is %s", i, from[alias.Name], alias.Name, is)
			case !known:
				out[alias.Name], from[alias.Name] = c, o.Name
			}
		}
	}
	return out
}

// read returns the community of a text, which is a name or numbers.
func (a aliases) read(text string) (lb.Community, error) {
	if strings.Contains(text, ":") {
		return parseCommunity(text)
	}
	c, known := a[text]
	if !known {
		return lb.Community{}, fmt.Errorf("no Community has the name %q; the well-known ones are %s", text, strings.Join(slices.Sorted(maps.Keys(wellKnown)), ", "))
	}
	return c, nil
}

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
