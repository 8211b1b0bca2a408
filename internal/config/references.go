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

// wellKnown are the well-known communities in IANA's registry that a speaker may send, by their names.
var wellKnown = map[string]lb.Community{
	"graceful-shutdown":   {A: 65535, B: 0},     // RFC 8326
	"blackhole":           {A: 65535, B: 666},   // RFC 7999
	"no-export":           {A: 65535, B: 65281}, // RFC 1997
	"no-advertise":        {A: 65535, B: 65282}, // RFC 1997
	"no-export-subconfed": {A: 65535, B: 65283}, // RFC 1997
	"no-peer":             {A: 65535, B: 65284}, // RFC 3765
}

// aliases are communities by their names.
type aliases map[string]lb.Community

// compileAliases reads the names of communities. If several objects define a name, the oldest one wins.
func compileAliases(r *problemList, objects []*v1beta1.Community) aliases {
	out := maps.Clone(aliases(wellKnown))
	definedBy := map[string]string{}
	for _, o := range oldestFirst(objects) {
		object := lb.Object{Kind: KindCommunity, Name: o.Name}
		for i, alias := range o.Spec.Communities {
			c, err := parseCommunity(alias.Value)
			existing, isDefined := out[alias.Name]

			switch {
			case err != nil:
				r.add(object, lb.InvalidCommunity, "spec.communities[%d] is not known: %v", i, err)
			case isDefined && definedBy[alias.Name] == "":
				r.add(object, lb.DuplicateAlias, "spec.communities[%d] is not used: %s is a well-known community, %s",
					i, alias.Name, existing)
			case isDefined && existing != c:
				r.add(object, lb.DuplicateAlias,
					"spec.communities[%d] is not used: in Community %q, which is older, %s is %s",
					i, definedBy[alias.Name], alias.Name, existing)
			case !isDefined:
				out[alias.Name] = c
				definedBy[alias.Name] = o.Name
			}
		}
	}

	return out
}

// lookup returns the community with a name, or reads its numbers.
func (a aliases) lookup(text string) (lb.Community, error) {
	if strings.Contains(text, ":") {
		return parseCommunity(text)
	}

	c, ok := a[text]
	if !ok {
		names := strings.Join(slices.Sorted(maps.Keys(wellKnown)), ", ")
		return lb.Community{}, fmt.Errorf("no Community has the name %q; the well-known ones are %s", text, names)
	}

	return c, nil
}

// parseCommunity reads "65000:100" (RFC 1997: two numbers of 16 bits) or "large:64500:1:2" (RFC 8092: three of 32
// bits).
func parseCommunity(s string) (lb.Community, error) {
	numbers, isLarge := strings.CutPrefix(s, "large:")
	count, bits := 2, 16
	if isLarge {
		count, bits = 3, 32
	}

	invalid := fmt.Errorf("%q is not a community", s)
	parts := strings.Split(numbers, ":")
	if len(parts) != count {
		return lb.Community{}, invalid
	}

	var n [3]uint32
	for i, part := range parts {
		v, err := strconv.ParseUint(part, 10, bits)
		if err != nil {
			return lb.Community{}, invalid
		}
		n[i] = uint32(v)
	}

	return lb.Community{
		Large: isLarge,
		A:     n[0],
		B:     n[1],
		C:     n[2],
	}, nil
}

// Defaults of a BFDProfile. They are the defaults of FRR, to which MetalLB leaves them.
const (
	defaultBFDInterval   = 300 // milliseconds
	defaultBFDMultiplier = 3
	defaultMinimumTTL    = 254
)

// readBFD reads the profile that a peer names. The schema bounds its fields. A peer whose profile does not exist runs
// without BFD: an object that was deleted by mistake must not end the session.
func readBFD(r *problemList, object lb.Object, name string, profiles []*v1beta1.BFDProfile) *lb.BFD {
	if name == "" {
		return nil
	}

	i := slices.IndexFunc(profiles, func(o *v1beta1.BFDProfile) bool {
		return o.Name == name
	})
	if i < 0 {
		r.add(object, lb.UnknownReference,
			"spec.bfdProfile names BFDProfile %q, which does not exist: the session runs without BFD", name)
		return nil
	}

	s := profiles[i].Spec
	interval := func(field *int32) time.Duration {
		return time.Duration(valueOr(field, defaultBFDInterval)) * time.Millisecond
	}
	return &lb.BFD{
		Receive:    interval(s.ReceiveInterval),
		Transmit:   interval(s.TransmitInterval),
		Passive:    s.PassiveMode,
		Multiplier: uint8(valueOr(s.DetectMultiplier, defaultBFDMultiplier)),
		MinimumTTL: uint8(valueOr(s.MinimumTTL, defaultMinimumTTL)),
	}
}

// maxPassword is the longest key that the kernel accepts: TCP_MD5SIG_MAXKEYLEN of linux/tcp.h.
const maxPassword = 80

// readPassword reads a peer's password, from a Secret of Holdfast's own namespace if the peer names one. After an error
// the peer is not used: a session that should be signed must not be opened unsigned.
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
		return s.Namespace == o.SecretNamespace &&
			s.Name == ref.Name &&
			s.Type == corev1.SecretTypeBasicAuth
	})
	if i < 0 {
		return "", fmt.Errorf("namespace %q has no Secret %q of type %s",
			o.SecretNamespace, ref.Name, corev1.SecretTypeBasicAuth)
	}

	password := string(o.Secrets[i].Data[corev1.BasicAuthPasswordKey])
	entry := fmt.Sprintf("entry %q of Secret %q", corev1.BasicAuthPasswordKey, ref.Name)
	if err := checkPassword(password, entry); err != nil {
		return "", err
	}

	return lb.Secret(password), nil
}

// checkPassword returns an error if routers could not have a password: they read theirs from a line of text. The error
// does not contain the password.
func checkPassword(password, entry string) error {
	if len(password) < 1 || len(password) > maxPassword {
		return fmt.Errorf("%s must have 1 to %d characters, and has %d", entry, maxPassword, len(password))
	}

	isUnprintable := func(c rune) bool { return c < ' ' || c > '~' }
	hasOuterSpace := strings.TrimSpace(password) != password
	if hasOuterSpace || strings.ContainsFunc(password, isUnprintable) {
		return fmt.Errorf("%s must have printable ASCII characters only, and no space at its ends; "+
			"a line break at its end is a frequent mistake", entry)
	}

	return nil
}
