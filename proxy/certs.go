package main

import (
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
	// maxPair bounds a pair in octets, which is in the directory of its namespace twice.
	maxPair = 16 << 10
	// maxRSA bounds a key in bits: a handshake with 8192 holds a thread for 60 ms.
	maxRSA = 4096
)

// pair is a certificate with those between it and its root, and its key, as HAProxy reads them.
type pair struct {
	digest string
	// text has the key: it goes to a file of the engine, and nowhere else.
	text        []byte
	from, until time.Time
}

// certificates are the pairs with which TLS ends. Each Secret that a Service names is followed for as long as one does.
type certificates struct {
	log *slog.Logger
	// follow calls see with each version of a Secret, nil if there is none, until it is stopped; what see cannot do is
	// repeated.
	follow func(secret lb.Key, see func(*corev1.Secret, error) error) (stop func())
	// takes returns what HAProxy has against a pair.
	takes func(text []byte) error
	kick  func()

	mu      sync.Mutex
	secrets map[lb.Key]*secret
	// kept are the last good pairs, by Service: a slip in a Secret, or in its name, is no outage.
	kept map[lb.Key]*pair
	// trying: HAProxy looks at one pair at a time.
	trying sync.Mutex
}

type secret struct {
	stop func()
	// answered: the API server has said what it has.
	answered bool
	pair     *pair
	fault    lb.Reason
}

type certified struct {
	digests map[lb.Key]string
	faults  map[string]lb.Reason
	// again is when a certificate begins or ends to be valid, 0 for never.
	again time.Duration
	// complete: the API server has answered about each Secret.
	complete bool
}

// look follows the Secrets that Services name, and returns what is known of them.
func (c *certificates) look(services []*lb.Service, at time.Time) certified {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := certified{digests: map[lb.Key]string{}, faults: map[string]lb.Reason{}, complete: true}
	secrets, kept := map[lb.Key]*secret{}, map[lb.Key]*pair{}
	for _, s := range services {
		if s.Proxy == nil || s.Proxy.Secret == "" || s.ProxyRefused {
			continue
		}
		key := lb.Key{Namespace: s.Key.Namespace, Name: s.Proxy.Secret}
		known := c.secrets[key]
		if known == nil {
			known = &secret{}
			c.secrets[key] = known
			known.stop = c.follow(key, func(o *corev1.Secret, err error) error { return c.see(key, known, o, err) })
		}
		secrets[key] = known
		out.complete = out.complete && known.answered
		p, fault := c.kept[s.Key], known.fault
		if known.pair != nil {
			p = known.pair
		}
		if p != nil {
			kept[s.Key], out.digests[s.Key] = p, p.digest
			for _, change := range []time.Time{p.from, p.until} {
				if change.After(at) {
					out.again = daemon.Sooner(out.again, change.Sub(at)+time.Second)
				}
			}
			if fault == "" && (at.Before(p.from) || at.After(p.until)) {
				fault = lb.CertificateExpired
			}
		}
		if fault != "" {
			out.faults[s.Key.String()] = fault
		}
	}
	for key, o := range c.secrets {
		if secrets[key] == nil {
			o.stop()
		}
	}
	c.secrets, c.kept = secrets, kept
	return out
}

// see takes what the API server has of a Secret. An error that says nothing of it changes nothing.
func (c *certificates) see(key lb.Key, known *secret, o *corev1.Secret, err error) error {
	var next *pair
	var fault lb.Reason
	switch {
	case apierrors.IsForbidden(err):
		fault = lb.SecretForbidden
	case err != nil:
		c.log.Debug("cannot read a Secret", "secret", key, "error", err)
		return nil
	case o == nil:
		fault = lb.SecretMissing
	default:
		if next, fault = readPair(o); next != nil {
			c.trying.Lock()
			err = c.takes(next.text)
			c.trying.Unlock()
		}
		// A look that was killed says nothing of the pair.
		if refused := (*exec.ExitError)(nil); errors.As(err, &refused) && refused.Exited() {
			next, fault = nil, lb.SecretWrong
		} else if err != nil {
			c.log.Error("cannot have HAProxy look at a pair", "secret", key, "error", err)
			c.mu.Lock()
			known.answered = true // other Secrets do not wait for this one
			c.mu.Unlock()
			c.kick()
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if fault != "" && fault != known.fault {
		c.log.Warn("a Secret has no certificate for TLS", "secret", key, "reason", fault)
	}
	known.answered, known.pair, known.fault = true, next, fault
	c.kick()
	return nil
}

// text returns the pair of a digest, nil if none is known.
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

// readPair reads a Secret: nothing of it but certificates and a key that fits the first of them reaches HAProxy.
func readPair(o *corev1.Secret) (*pair, lb.Reason) {
	crt, key := o.Data[corev1.TLSCertKey], o.Data[corev1.TLSPrivateKeyKey]
	if o.Type != corev1.SecretTypeTLS || len(crt)+len(key) > maxPair {
		return nil, lb.SecretWrong
	}
	crt, key = blocks(crt, "CERTIFICATE"), blocks(key, "PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY")
	got, err := tls.X509KeyPair(crt, key)
	switch {
	case err != nil && strings.Contains(err.Error(), "does not match"):
		return nil, lb.KeyWrong
	case err != nil:
		return nil, lb.SecretWrong
	}
	if public, ok := got.Leaf.PublicKey.(*rsa.PublicKey); ok && public.N.BitLen() > maxRSA {
		return nil, lb.SecretWrong
	}
	text := append(crt, key...)
	return &pair{
		digest: haproxy.Digest(string(text)),
		text:   text,
		from:   got.Leaf.NotBefore,
		until:  got.Leaf.NotAfter,
	}, ""
}

// blocks returns the blocks of some kinds, without what is between them and their headers.
func blocks(text []byte, kinds ...string) (out []byte) {
	for {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil {
			return out
		}
		if slices.Contains(kinds, b.Type) {
			out = append(out, pem.EncodeToMemory(&pem.Block{Type: b.Type, Bytes: b.Bytes})...)
		}
	}
}

// take has HAProxy look at a pair, which may have what Go reads and HAProxy does not, as a short key: it would refuse
// the whole configuration of the namespace with it. What it has already taken is not asked again.
func (a *agent) take(text []byte) error {
	name := haproxy.PairFile(haproxy.Digest(string(text)))
	if files, _ := filepath.Glob(filepath.Join(a.dir, "*", name)); len(files) > 0 { // the pattern is well-formed
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
	cmd.Stdin = strings.NewReader(
		fmt.Sprintf(
			"global\n  maxconn 10\n  nbthread 1\nlisten try\n  mode http\n  timeout client 1s\n  timeout server 1s\n  "+
				"timeout connect 1s\n  bind 127.0.0.1:1 ssl crt %s\n",
			try,
		),
	)
	return cmd.Run()
}

// putPair writes the file of a pair, unless it is there.
func (t *tenant) putPair(digest string) error {
	name := haproxy.PairFile(digest)
	if _, err := os.Stat(filepath.Join(t.engine.Directory, name)); err == nil {
		return nil
	}
	text := t.pair(digest)
	if text == nil {
		return fmt.Errorf("write %s: the pair is no longer known", name)
	}
	return t.put(name, string(text))
}
