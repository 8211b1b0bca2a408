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

const (
	// The defaults of FRR, which MetalLB leaves to it.
	defaultBFDInterval   = 300
	defaultBFDMultiplier = 3
	defaultMinimumTTL    = 254
)

// attachBFD gives every peer that names a BFDProfile its BFD. A peer whose profile cannot be used runs without BFD: what
// is advertised must not depend on an object that somebody deleted by mistake.
func attachBFD(r *report, profiles []*v1beta1.BFDProfile, objects []*v1beta1.BGPPeer, peers []lb.Peer) {
	compiled := compileBFDProfiles(profiles)
	names := map[string]string{}
	for _, o := range objects {
		names[o.Name] = o.Spec.BFDProfile
	}
	for i := range peers {
		name := names[peers[i].Name]
		if name == "" {
			continue
		}
		b, exists := compiled[name]
		if !exists {
			r.fault(lb.Object{Kind: KindPeer, Name: peers[i].Name}, lb.UnknownReference,
				"spec.bfdProfile names BFDProfile %q, which does not exist or is not in force: the session runs without BFD", name)
			continue
		}
		peers[i].BFD = &b
	}
}

// compileBFDProfiles returns the profiles in force, by name. Their bounds are those of the schema.
func compileBFDProfiles(objects []*v1beta1.BFDProfile) map[string]lb.BFD {
	out := map[string]lb.BFD{}
	for _, o := range objects {
		s, milliseconds := o.Spec, func(field *int32) time.Duration {
			return time.Duration(valueOr(field, defaultBFDInterval)) * time.Millisecond
		}
		out[o.Name] = lb.BFD{
			Receive: milliseconds(s.ReceiveInterval), Transmit: milliseconds(s.TransmitInterval), Passive: s.PassiveMode,
			Multiplier: uint8(valueOr(s.DetectMultiplier, defaultBFDMultiplier)), MinimumTTL: uint8(valueOr(s.MinimumTTL, defaultMinimumTTL)),
		}
	}
	return out
}

// maxPassword is what the kernel takes as a key: TCP_MD5SIG_MAXKEYLEN of linux/tcp.h.
const maxPassword = 80

// secrets are the Secrets of type kubernetes.io/basic-auth in Holdfast's own namespace.
type secrets struct {
	namespace string
	byName    map[string]*corev1.Secret
}

func newSecrets(o Objects) secrets {
	s := secrets{namespace: o.SecretNamespace, byName: map[string]*corev1.Secret{}}
	for _, secret := range o.Secrets {
		if secret.Namespace == o.SecretNamespace && secret.Type == corev1.SecretTypeBasicAuth {
			s.byName[secret.Name] = secret
		}
	}
	return s
}

// errPassword is a password that a peer asks for and that cannot be had.
type errPassword struct{ error }

// readPassword reads a peer's password. Without it the peer is not used: a session that its owner wants to be signed
// must not be opened unsigned.
func (s secrets) readPassword(p *lb.Peer, spec v1beta1.BGPPeerSpec) error {
	ref := spec.PasswordSecret
	if ref == nil {
		p.Password = lb.Secret(spec.Password)
		return nil
	}
	if ref.Namespace != "" && ref.Namespace != s.namespace {
		return errPassword{fmt.Errorf("passwordSecret is in namespace %q, and only Holdfast's own, %q, is read: create the Secret there", ref.Namespace, s.namespace)}
	}
	secret := s.byName[ref.Name]
	if secret == nil {
		return errPassword{fmt.Errorf("namespace %q has no Secret %q of type %s: create it", s.namespace, ref.Name, corev1.SecretTypeBasicAuth)}
	}
	text := string(secret.Data[corev1.BasicAuthPasswordKey])
	if err := checkPassword(fmt.Sprintf("entry %q of Secret %q", corev1.BasicAuthPasswordKey, ref.Name), text); err != nil {
		return errPassword{err}
	}
	p.Password = lb.Secret(text)
	return nil
}

// checkPassword returns what is wrong with a password, without showing it. Routers read theirs from a line of text.
func checkPassword(what, text string) error {
	if len(text) < 1 || len(text) > maxPassword {
		return fmt.Errorf("%s must have 1 to %d characters, and has %d", what, maxPassword, len(text))
	}
	for _, c := range []byte(text) {
		if c <= ' ' || c > '~' {
			return fmt.Errorf("%s must have printable ASCII characters without spaces only; a line break at its end is a frequent mistake", what)
		}
	}
	return nil
}
