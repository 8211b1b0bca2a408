package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
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
				r.fault(
					object,
					lb.DuplicateAlias,
					"spec.communities[%d] is not used: %s is a well-known community, %s",
					i,
					alias.Name,
					is,
				)
			case known && is != c:
				r.fault(
					object,
					lb.DuplicateAlias,
					"spec.communities[%d] is not used: in Community %q, which is older, %s is %s",
					i,
					from[alias.Name],
					alias.Name,
					is,
				)
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
		return lb.Community{}, fmt.Errorf(
			"no Community has the name %q; the well-known ones are %s",
			text,
			strings.Join(slices.Sorted(maps.Keys(wellKnown)), ", "),
		)
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
	var n []uint32
	for _, part := range parts {
		if v, err := strconv.ParseUint(part, 10, bits); err == nil {
			n = append(n, uint32(v))
		}
	}
	if len(parts) != count || len(n) != count {
		return lb.Community{}, fmt.Errorf("%q is not a community", s)
	}
	n = append(n, 0)
	return lb.Community{Large: large, A: n[0], B: n[1], C: n[2]}, nil
}

const (
	// The defaults of FRR, which MetalLB leaves to it.
	defaultBFDInterval   = 300
	defaultBFDMultiplier = 3
	defaultMinimumTTL    = 254
)

// readBFD reads the profile that a peer names; the bounds of its fields are those of the schema. A peer whose profile
// does not exist runs without BFD: what is advertised must not depend on an object that somebody deleted by mistake.
func readBFD(r *report, object lb.Object, name string, profiles []*v1beta1.BFDProfile) *lb.BFD {
	if name == "" {
		return nil
	}
	i := slices.IndexFunc(profiles, func(o *v1beta1.BFDProfile) bool { return o.Name == name })
	if i < 0 {
		r.fault(
			object,
			lb.UnknownReference,
			"spec.bfdProfile names BFDProfile %q, which does not exist: the session runs without BFD",
			name,
		)
		return nil
	}
	s, milliseconds := profiles[i].Spec, func(field *int32) time.Duration {
		return time.Duration(valueOr(field, defaultBFDInterval)) * time.Millisecond
	}
	return &lb.BFD{
		Receive:    milliseconds(s.ReceiveInterval),
		Transmit:   milliseconds(s.TransmitInterval),
		Passive:    s.PassiveMode,
		Multiplier: uint8(valueOr(s.DetectMultiplier, defaultBFDMultiplier)),
		MinimumTTL: uint8(valueOr(s.MinimumTTL, defaultMinimumTTL)),
	}
}

// maxPassword is what the kernel takes as a key: TCP_MD5SIG_MAXKEYLEN of linux/tcp.h.
const maxPassword = 80

// readPassword reads a peer's password, from a Secret of Holdfast's own namespace if it names one. Without it the peer
// is not used: a session that its owner wants to be signed must not be opened unsigned.
func (o Objects) readPassword(spec v1beta1.BGPPeerSpec) (lb.Secret, error) {
	ref := spec.PasswordSecret
	if ref == nil || ref.Name == "" {
		return lb.Secret(spec.Password), nil
	}
	if ref.Namespace != "" && ref.Namespace != o.SecretNamespace {
		return "", fmt.Errorf("passwordSecret is in namespace %q, and only Holdfast's own, %q, is read",
			ref.Namespace, o.SecretNamespace)
	}
	i := slices.IndexFunc(o.Secrets, func(s *corev1.Secret) bool {
		return s.Namespace == o.SecretNamespace && s.Name == ref.Name && s.Type == corev1.SecretTypeBasicAuth
	})
	if i < 0 {
		return "", fmt.Errorf("namespace %q has no Secret %q of type %s",
			o.SecretNamespace, ref.Name, corev1.SecretTypeBasicAuth)
	}
	text, what := string(
		o.Secrets[i].Data[corev1.BasicAuthPasswordKey],
	), fmt.Sprintf(
		"entry %q of Secret %q",
		corev1.BasicAuthPasswordKey,
		ref.Name,
	)
	// The messages do not show it. Routers read theirs from a line of text.
	if len(text) < 1 || len(text) > maxPassword {
		return "", fmt.Errorf("%s must have 1 to %d characters, and has %d", what, maxPassword, len(text))
	}
	if strings.TrimSpace(text) != text || strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' }) {
		return "", fmt.Errorf(
			"%s must have printable ASCII characters only, and no space at its ends; a line break at its end is a frequent mistake",
			what,
		)
	}
	return lb.Secret(text), nil
}
