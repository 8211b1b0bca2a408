package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/haproxy"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// testKey is a key of the kind of a curve, or of RSA with so many bits.
func testKey(t *testing.T, bits int) (private any, public any) {
	t.Helper()
	if bits == 0 {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(t, err)
		return key, key.Public()
	}
	t.Setenv("GODEBUG", "rsa1024min=0")
	key, err := rsa.GenerateKey(rand.Reader, bits)
	must(t, err)
	return key, key.Public()
}

// tlsSecret returns a Secret with a pair for a name, valid for a time around now.
func tlsSecret(t *testing.T, name string, bits int, before, after time.Duration) *corev1.Secret {
	t.Helper()
	private, public := testKey(t, bits)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-before), NotAfter: time.Now().Add(after),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	must(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	return &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	}}
}

func goodSecret(t *testing.T) *corev1.Secret {
	return tlsSecret(t, "web.example", 0, time.Hour, time.Hour)
}

func TestReadPair(t *testing.T) {
	good, other := goodSecret(t), goodSecret(t)
	crt, key := string(good.Data[corev1.TLSCertKey]), string(good.Data[corev1.TLSPrivateKeyKey])
	with := func(crt, key string) *corev1.Secret {
		return &corev1.Secret{
			Type: corev1.SecretTypeTLS,
			Data: map[string][]byte{corev1.TLSCertKey: []byte(crt), corev1.TLSPrivateKeyKey: []byte(key)},
		}
	}
	opaque := good.DeepCopy()
	opaque.Type = corev1.SecretTypeOpaque
	encrypted := strings.ReplaceAll(key, "PRIVATE KEY", "ENCRYPTED PRIVATE KEY")
	for name, tt := range map[string]struct {
		secret *corev1.Secret
		want   lb.Reason
	}{
		"good":    {good, ""},
		"a chain": {with(crt+string(other.Data[corev1.TLSCertKey]), key), ""},
		"words around": {with("subject=x\n"+crt+"\nbind :1\n",
			"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"+
				key), ""},
		"another type":   {opaque, lb.SecretWrong},
		"empty":          {with("", ""), lb.SecretWrong},
		"no key":         {with(crt, ""), lb.SecretWrong},
		"no certificate": {with("", key), lb.SecretWrong},
		"exchanged":      {with(key, crt), lb.SecretWrong},
		"not PEM":        {with("hello", "world"), lb.SecretWrong},
		"no certificate in the block": {with("-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n", key),
			lb.SecretWrong},
		"an encrypted key":   {with(crt, encrypted), lb.SecretWrong},
		"too large":          {with(crt+strings.Repeat("\n", maxPair), key), lb.SecretWrong},
		"the key of another": {with(crt, string(other.Data[corev1.TLSPrivateKeyKey])), lb.KeyWrong},
		"expired is read":    {tlsSecret(t, "x", 0, 2*time.Hour, -time.Hour), ""},
	} {
		p, fault := readPair(tt.secret)
		if fault != tt.want || (p == nil) != (tt.want != "") {
			t.Errorf("%s: %q and %v, want %q", name, fault, p != nil, tt.want)
			continue
		}
		if p == nil {
			continue
		}
		for rest := p.text; len(rest) > 0; {
			var b *pem.Block
			if b, rest = pem.Decode(rest); b == nil || b.Type != "CERTIFICATE" && b.Type != "PRIVATE KEY" ||
				strings.Contains(string(p.text), "bind") {
				t.Fatalf("%s: more than a pair comes to HAProxy", name)
			}
		}
	}
}

// HAProxy refuses what Go reads, and is asked first: otherwise one Secret would keep the changes of all Services from
// coming into force.
func TestTake(t *testing.T) {
	a := newAgent(slog.New(slog.DiscardHandler), t.TempDir())
	var err error
	if a.program, err = exec.LookPath("haproxy"); err != nil {
		t.Skip("HAProxy is not installed")
	}
	good, fault := readPair(goodSecret(t))
	if err := a.checkPair(good.text); err != nil || fault != "" {
		t.Error("a good pair is refused", err, fault)
	}
	short, fault := readPair(tlsSecret(t, "x", 1024, time.Hour, time.Hour))
	if err := a.checkPair(short.text); err == nil || fault != "" {
		t.Error("a short key is taken", fault)
	}
	if files, _ := filepath.Glob(filepath.Join(a.dir, "*")); len(files) > 0 {
		t.Errorf("%v stay", files)
	}
	// What it took is not asked again.
	if a.program = "/nowhere"; a.checkPair(good.text) == nil {
		t.Error("HAProxy is not asked")
	}
	must(t, os.Mkdir(filepath.Join(a.dir, "shop"), 0o700))
	must(t, os.WriteFile(filepath.Join(a.dir, "shop", haproxy.PairFile(good.digest)), nil, 0o600))
	if a.checkPair(good.text) != nil {
		t.Error("HAProxy is asked again")
	}
}

// vault is what an API server has of Secrets, and who follows them.
type vault struct {
	*certificates
	see map[lb.Key]func(*corev1.Secret, error) error
}

func newVault() vault {
	v := vault{see: map[lb.Key]func(*corev1.Secret, error) error{}}
	v.certificates = &certificates{
		log: slog.New(slog.DiscardHandler), check: func([]byte) error {
			return nil
		}, kick: func() {}, secrets: map[lb.Key]*secret{}, kept: map[lb.Key]*pair{},
		follow: func(key lb.Key, see func(*corev1.Secret, error) error) func() {
			v.see[key] = see
			return func() { delete(v.see, key) }
		},
	}
	return v
}

func tlsService(name, secret string) *lb.Service {
	return &lb.Service{Key: lb.Key{Namespace: "shop", Name: name}, Proxy: &lb.Proxy{Secret: secret}}
}

// A pair that was good serves until there is another: in place of a Secret that is wrong, missing or forbidden, or has
// another name.
func TestCertificates(t *testing.T) {
	v, at := newVault(), time.Now()
	web, key := tlsService("web", "tls"), lb.Key{Namespace: "shop", Name: "tls"}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "tls", nil)
	check := func(what string, want lb.Reason, digest string, services ...*lb.Service) secretView {
		t.Helper()
		got := v.resolve(services, at)
		wantFaults := map[string]lb.Reason{}
		if want != "" {
			wantFaults["shop/web"] = want
		}
		if got.digests[web.Key] != digest || !cmp.Equal(wantFaults, got.faults) {
			t.Errorf("%s: pair %q and %v, want %q and %v", what, got.digests[web.Key], got.faults, digest, wantFaults)
		}
		return got
	}
	tell := func(key lb.Key, o *corev1.Secret, err error) string {
		t.Helper()
		must(t, v.see[key](o, err))
		if o == nil {
			return ""
		}
		p, _ := readPair(o)
		return p.digest
	}
	if check("unknown", "", "", web).complete {
		t.Error("it is complete without an answer")
	}
	tell(key, nil, errors.New("no connection"))
	if check("no connection", "", "", web).complete {
		t.Error("it is complete without an answer")
	}
	tell(key, nil, forbidden)
	if !check("forbidden", lb.SecretForbidden, "", web).complete {
		t.Error("it is not complete")
	}
	tell(key, nil, nil)
	check("missing", lb.SecretMissing, "", web)
	first := tell(key, goodSecret(t), nil)
	if got := check("good", "", first, web); got.again < time.Minute || got.again > time.Hour+time.Minute {
		t.Errorf("it looks again after %v", got.again)
	}
	tell(key, nil, nil)
	check("missing, kept", lb.SecretMissing, first, web)
	tell(key, nil, forbidden)
	check("forbidden, kept", lb.SecretForbidden, first, web)
	wrong := goodSecret(t)
	wrong.Type = corev1.SecretTypeOpaque
	must(t, v.see[key](wrong, nil))
	check("wrong, kept", lb.SecretWrong, first, web)
	second := tell(key, goodSecret(t), nil)
	check("rotated", "", second, web)
	tell(key, nil, errors.New("no connection"))
	check("no connection, kept", "", second, web)
	v.check = func([]byte) error { return exec.Command("false").Run() }
	tell(key, goodSecret(t), nil)
	check("HAProxy refuses it", lb.SecretWrong, second, web)
	v.check = func([]byte) error { return errors.New("no memory") }
	if v.see[key](goodSecret(t), nil) == nil {
		t.Error("what failed is not repeated")
	}
	v.check = func([]byte) error { return nil }

	// Another name of a Secret is a slip too, until that has a pair; then the first is followed no more.
	renamed, other := tlsService("web", "tlz"), lb.Key{Namespace: "shop", Name: "tlz"}
	v.resolve([]*lb.Service{renamed}, at)
	tell(other, nil, nil)
	check("renamed, kept", lb.SecretMissing, second, renamed)
	if v.see[key] != nil || len(v.see) != 1 {
		t.Errorf("%d Secrets are followed", len(v.see))
	}
	third := tell(other, tlsSecret(t, "x", 0, 2*time.Hour, -time.Hour), nil)
	check("expired, served", lb.CertificateExpired, third, renamed)
	third = tell(other, tlsSecret(t, "x", 0, -time.Hour, 2*time.Hour), nil)
	if got := check("not yet valid, served", lb.CertificateExpired, third, renamed); got.again < time.Minute ||
		got.again > time.Hour+time.Minute {
		t.Errorf("it looks again after %v", got.again)
	}
	if v.text(third) == nil || v.text(second) != nil {
		t.Error("the wrong pairs are in memory")
	}
	// A Service that may have no proxy, or asks for no TLS any more, has nothing read and nothing kept.
	refused := tlsService("web", "tlz")
	refused.ProxyRefused = true
	check("refused", "", "", refused, tlsService("plain", ""))
	if len(v.see) > 0 || v.text(third) != nil {
		t.Error("a Secret is followed for no Service")
	}
}

// TestKilledLook: a look at a good pair that is killed, for want of memory or of time, says nothing of the pair, and is
// repeated.
func TestKilledLook(t *testing.T) {
	v := newVault()
	v.check = func([]byte) error { return exec.Command("sh", "-c", "kill -9 $$").Run() }
	service := []*lb.Service{tlsService("web", "tls")}
	v.resolve(service, time.Now())
	see := v.see[lb.Key{Namespace: "shop", Name: "tls"}]
	if err := see(goodSecret(t), nil); err == nil {
		t.Error("nothing is repeated")
	}
	if got := v.resolve(service, time.Now()); !got.complete || len(got.faults) > 0 {
		t.Errorf("other Secrets wait for it, or it is called wrong: %v", got)
	}
	v.check = func([]byte) error { return nil }
	must(t, see(goodSecret(t), nil))
	if got := v.resolve(service, time.Now()); len(got.faults) > 0 || len(got.digests) != 1 {
		t.Errorf("%v", got)
	}
}

// TestLongKey: a key whose handshakes hold a thread for long is refused.
func TestLongKey(t *testing.T) {
	if _, fault := readPair(tlsSecret(t, "web", 4096, time.Hour, time.Hour)); fault != "" {
		t.Errorf("4096 bits: %s", fault)
	}
	if _, fault := readPair(tlsSecret(t, "web", 4104, time.Hour, time.Hour)); fault != lb.SecretWrong {
		t.Errorf("more: %q", fault)
	}
}
