package lab

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"testing"
)

func parse(t *testing.T, b []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(b)
	if block == nil {
		t.Fatal("no PEM")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestServingNames(t *testing.T) {
	ca, err := newAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	hosts := plan(Config{Workers: 1})
	for _, tc := range []struct {
		id    identity
		names []string
	}{
		{apiServer(hosts[0]), []string{"kubernetes", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost",
			"127.0.0.1", "172.30.0.10", "fd00:30::10", "172.31.0.10", "10.96.0.1", "fd00:96::1"}},
		{kubeletIdentity(hosts[1]), []string{"w1", "172.30.0.11", "fd00:30::11"}},
	} {
		cert, key, err := ca.issue(tc.id)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tls.X509KeyPair(cert, key); err != nil {
			t.Errorf("%s: certificate and key: %v", tc.id.commonName, err)
		}
		for _, name := range tc.names {
			if _, err := parse(t, cert).Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
				t.Errorf("%s: %v", tc.id.commonName, err)
			}
		}
	}
}

// What the Node authorizer looks at.
func TestKubeletIdentity(t *testing.T) {
	ca, err := newAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	b, _, err := ca.issue(kubeletIdentity(plan(Config{Workers: 1})[1]))
	if err != nil {
		t.Fatal(err)
	}
	s := parse(t, b).Subject
	if s.CommonName != "system:node:w1" || len(s.Organization) != 1 || s.Organization[0] != "system:nodes" {
		t.Errorf("subject %s, want system:node:w1 of system:nodes", s)
	}
}
