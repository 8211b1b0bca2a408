package main

import (
	"cmp"
	"context"
	"crypto/rsa"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/haproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// maxPair bounds a pair in bytes. The directory of its namespace has it twice.
	maxPair = 16 << 10
	// maxRSA bounds a key in bits: a handshake with 8192 holds a thread for 60 ms.
	maxRSA = 4096
)

// pair is the certificate chain of a Service and its key, as HAProxy reads them.
type pair struct {
	digest string
	// text has the key: it goes to a file of the engine, and nowhere else.
	text []byte
	// from is the time from which the certificate is valid.
	from time.Time
	// until is the time until which the certificate is valid.
	until time.Time
}

// certificates has the pairs with which proxies terminate TLS. It follows each Secret as long as a Service names it.
type certificates struct {
	log *slog.Logger
	// follow calls receive with each version of a Secret, nil if there is none, until stop is called. It repeats a call
	// that returned an error.
	follow func(secret lb.Key, receive func(*corev1.Secret, error) error) (stop func())
	// check returns an error if HAProxy does not accept a pair.
	check func(text []byte) error
	kick  func()

	mu      sync.Mutex
	secrets map[lb.Key]*secret
	// kept are the last good pairs, by Service. So a mistake in a Secret, or in its name, causes no outage.
	kept map[lb.Key]*pair
	// checking makes the checks sequential.
	checking sync.Mutex
}

// secret is what is known of a Secret.
type secret struct {
	// stop ends the watch of the Secret.
	stop func()
	// isAnswered reports whether the API server has answered about the Secret.
	isAnswered bool
	// pair is the pair in the Secret; nil if it has no good one.
	pair  *pair
	fault lb.Reason
}

// secretView has the pairs and faults of all Services.
type secretView struct {
	// digests are the digests of the pairs.
	digests map[lb.Key]string
	faults  map[string]lb.Reason
	// again is the time until a certificate becomes valid or expires; 0 for never.
	again time.Duration
	// complete reports whether the API server has answered about each Secret.
	complete bool
}

// resolve follows the Secrets that Services name, and returns their pairs and faults.
func (c *certificates) resolve(services []*lb.Service, at time.Time) secretView {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := secretView{
		digests:  map[lb.Key]string{},
		faults:   map[string]lb.Reason{},
		complete: true,
	}

	named := map[lb.Key]*secret{}
	kept := map[lb.Key]*pair{}
	for _, s := range services {
		asksTLS := s.Proxy != nil &&
			s.Proxy.Secret != "" &&
			!s.ProxyRefused
		if !asksTLS {
			continue
		}

		key := lb.Key{Namespace: s.Key.Namespace, Name: s.Proxy.Secret}
		known := c.followed(key)
		named[key] = known
		out.complete = out.complete && known.isAnswered

		p := cmp.Or(known.pair, c.kept[s.Key])
		fault := known.fault
		if p != nil {
			kept[s.Key] = p
			out.digests[s.Key] = p.digest
			out.again = daemon.Sooner(out.again, p.nextChange(at))
			fault = cmp.Or(fault, p.checkValid(at))
		}

		if fault != "" {
			out.faults[s.Key.String()] = fault
		}
	}

	for key, o := range c.secrets {
		if named[key] == nil {
			o.stop()
		}
	}

	c.secrets = named
	c.kept = kept
	return out
}

// followed returns what is known of a Secret, and follows it from the first call on. The caller holds mu.
func (c *certificates) followed(key lb.Key) *secret {
	known := c.secrets[key]
	if known != nil {
		return known
	}

	known = &secret{}
	c.secrets[key] = known
	known.stop = c.follow(key, func(o *corev1.Secret, err error) error {
		return c.receive(key, known, o, err)
	})
	return known
}

// nextChange returns the time until the certificate becomes valid or expires; 0 for never.
func (p *pair) nextChange(at time.Time) (wait time.Duration) {
	for _, change := range []time.Time{p.from, p.until} {
		if change.After(at) {
			wait = daemon.Sooner(wait, change.Sub(at)+time.Second)
		}
	}

	return wait
}

// checkValid returns CertificateExpired if the certificate is not valid at a time, and "" if it is.
func (p *pair) checkValid(at time.Time) lb.Reason {
	if at.Before(p.from) || at.After(p.until) {
		return lb.CertificateExpired
	}
	return ""
}

// receive takes a version of a Secret, nil if there is none, or the error of reading it. An error that shows nothing
// about the Secret changes nothing.
func (c *certificates) receive(key lb.Key, known *secret, o *corev1.Secret, err error) error {
	switch {
	case apierrors.IsForbidden(err):
		c.update(key, known, nil, lb.SecretForbidden)
		return nil
	case err != nil:
		c.log.Debug("cannot read a Secret", "secret", key, "error", err)
		return nil
	case o == nil:
		c.update(key, known, nil, lb.SecretMissing)
		return nil
	}

	next, fault := readPair(o)
	if next == nil {
		c.update(key, known, nil, fault)
		return nil
	}

	c.checking.Lock()
	err = c.check(next.text)
	c.checking.Unlock()

	var refused *exec.ExitError
	isRefused := errors.As(err, &refused) && refused.Exited() // a check that was killed shows nothing
	switch {
	case isRefused:
		c.update(key, known, nil, lb.SecretWrong)
		return nil
	case err != nil:
		c.log.Error("HAProxy cannot check a pair", "secret", key, "error", err)
		c.mu.Lock()
		known.isAnswered = true // other Secrets do not wait for this one
		c.mu.Unlock()
		c.kick()
		return err
	}

	c.update(key, known, next, fault)
	return nil
}

// update records the pair or the fault of a Secret, and kicks.
func (c *certificates) update(key lb.Key, known *secret, next *pair, fault lb.Reason) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fault != "" && fault != known.fault {
		c.log.Warn("a Secret has no certificate for TLS", "secret", key, "reason", fault)
	}

	known.isAnswered = true
	known.pair = next
	known.fault = fault
	c.kick()
}

// text returns the text of the pair with a digest; nil if none is known.
func (c *certificates) text(digest string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.kept {
		if p.digest == digest {
			return p.text
		}
	}

	return nil
}

// readPair reads a Secret. Only certificates, and a key that fits the first of them, reach HAProxy. It returns a pair
// or the fault.
func readPair(o *corev1.Secret) (*pair, lb.Reason) {
	crt := o.Data[corev1.TLSCertKey]
	key := o.Data[corev1.TLSPrivateKeyKey]
	if o.Type != corev1.SecretTypeTLS || len(crt)+len(key) > maxPair {
		return nil, lb.SecretWrong
	}

	crt = blocks(crt, "CERTIFICATE")
	key = blocks(key, "PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY")
	parsed, err := tls.X509KeyPair(crt, key)
	switch {
	case err != nil && strings.Contains(err.Error(), "does not match"):
		return nil, lb.KeyWrong
	case err != nil:
		return nil, lb.SecretWrong
	}

	public, isRSA := parsed.Leaf.PublicKey.(*rsa.PublicKey)
	if isRSA && public.N.BitLen() > maxRSA {
		return nil, lb.SecretWrong
	}

	text := append(crt, key...)
	return &pair{
		digest: haproxy.Digest(string(text)),
		text:   text,
		from:   parsed.Leaf.NotBefore,
		until:  parsed.Leaf.NotAfter,
	}, ""
}

// blocks returns the PEM blocks of some kinds, without their headers and the text between them.
func blocks(text []byte, kinds ...string) (out []byte) {
	for {
		var b *pem.Block
		b, text = pem.Decode(text)
		if b == nil {
			return out
		}
		if slices.Contains(kinds, b.Type) {
			out = append(out, pem.EncodeToMemory(&pem.Block{Type: b.Type, Bytes: b.Bytes})...)
		}
	}
}

// tryConfig is a configuration with one listener and a pair, whose file is its argument.
const tryConfig = `global
  maxconn 10
  nbthread 1
listen try
  mode http
  timeout client 1s
  timeout server 1s
  timeout connect 1s
  bind 127.0.0.1:1 ssl crt %s
`

// checkPair returns an error if HAProxy does not accept a pair. HAProxy refuses some pairs that Go reads, for example
// with a short key. It would refuse the whole configuration of the namespace then. A pair that it accepted before is
// not checked again.
func (a *agent) checkPair(text []byte) error {
	name := haproxy.PairFile(haproxy.Digest(string(text)))
	files, _ := filepath.Glob(filepath.Join(a.dir, "*", name)) // the pattern is well-formed
	if len(files) > 0 {
		return nil
	}

	try := filepath.Join(a.dir, tryFile)
	defer os.Remove(try)
	if err := os.WriteFile(try, text, 0o600); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(context.Background(), talkTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, a.program, "-c", "-q", "-f", "/dev/stdin")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(tryConfig, try))
	return cmd.Run()
}

// putPair writes the file of a pair, unless it exists.
func (t *tenant) putPair(digest string) error {
	name := haproxy.PairFile(digest)
	_, err := os.Stat(filepath.Join(t.engine.Directory, name))
	if err == nil {
		return nil
	}

	text := t.pair(digest)
	if text == nil {
		return fmt.Errorf("write %s: the pair is no longer known", name)
	}

	return t.put(name, string(text))
}
