package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

// First addresses of the Service ranges: the API server's own Service.
var apiServiceIPs = []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")}

const certLife = 10 * 365 * 24 * time.Hour

// authority is a CA that lives as long as Up runs.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// identity is what a certificate says about its holder.
type identity struct {
	commonName   string
	organization []string
	names        []string
	addrs        []netip.Addr
}

// apiServer is the serving identity of the API server.
func apiServer(cp wire.Host) identity {
	id := identity{
		commonName: "kube-apiserver",
		names: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local", "localhost", cp.Name},
		addrs: append([]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}, apiServiceIPs...),
	}
	id.addrs = append(id.addrs, legAddrs(cp)...)
	return id
}

// kubeletIdentity is what the Node authorizer expects, and serves as well.
func kubeletIdentity(h wire.Host) identity {
	return identity{
		commonName: "system:node:" + h.Name, organization: []string{"system:nodes"},
		names: []string{h.Name}, addrs: legAddrs(h),
	}
}

func legAddrs(h wire.Host) []netip.Addr {
	var out []netip.Addr
	for _, l := range h.Legs {
		out = append(out, l.V4.Addr(), l.V6.Addr())
	}
	return out
}

// template turns an identity into a certificate for both ends of TLS.
func (id identity) template() *x509.Certificate {
	t := &x509.Certificate{
		Subject:     pkix.Name{CommonName: id.commonName, Organization: id.organization},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:    id.names,
	}
	for _, a := range id.addrs {
		t.IPAddresses = append(t.IPAddresses, net.IP(a.AsSlice()))
	}
	return t
}

func newAuthority(name string) (*authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	cert, err := sign(t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key}, nil
}

// issue returns certificate and key in PEM.
func (a *authority) issue(id identity) (cert, key []byte, err error) {
	k, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	c, err := sign(id.template(), a.cert, &k.PublicKey, a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("issue certificate of %s: %w", id.commonName, err)
	}
	key, err = keyPEM(k)
	return certPEM(c), key, err
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func sign(t, parent *x509.Certificate, pub *ecdsa.PublicKey, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	t.SerialNumber = serial
	// Clocks of one machine agree, but a test may look at the very second.
	t.NotBefore = time.Now().Add(-time.Minute)
	t.NotAfter = t.NotBefore.Add(certLife)
	der, err := x509.CreateCertificate(rand.Reader, t, parent, pub, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func certPEM(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

func keyPEM(k *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(k)
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), err
}

func publicPEM(k *ecdsa.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(k)
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), err
}

// pki writes the files of one host after the other.
type pki struct {
	server           string // URL of the API server
	cluster          *authority
	front            *authority
	serviceAccount   *ecdsa.PrivateKey
	clusterPEM, sPub []byte
}

func newPKI(server string) (*pki, error) {
	cluster, err := newAuthority("holdfast-lab")
	if err != nil {
		return nil, err
	}
	front, err := newAuthority("holdfast-lab-front-proxy")
	if err != nil {
		return nil, err
	}
	sa, err := newKey()
	if err != nil {
		return nil, err
	}
	pub, err := publicPEM(&sa.PublicKey)
	return &pki{
		server:         server,
		cluster:        cluster,
		front:          front,
		serviceAccount: sa,
		clusterPEM:     certPEM(cluster.cert),
		sPub:           pub,
	}, err
}

// writeFiles writes files of mode 0600 below dir.
func writeFiles(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// controlPlane writes what the daemons of the control plane need.
func (p *pki) controlPlane(dir string, cp wire.Host) error {
	files := map[string][]byte{
		"front-proxy-ca.crt": certPEM(p.front.cert), "sa.pub": p.sPub,
	}
	var err error
	if files["sa.key"], err = keyPEM(p.serviceAccount); err != nil {
		return err
	}
	if files["ca.key"], err = keyPEM(p.cluster.key); err != nil {
		return err
	}
	for _, c := range []struct {
		file string
		by   *authority
		id   identity
	}{
		{"apiserver", p.cluster, apiServer(cp)},
		{"kubelet-client", p.cluster, identity{
			commonName: "kube-apiserver-kubelet-client", organization: []string{"system:masters"},
		}},
		{"front-proxy-client", p.front, identity{commonName: "front-proxy-client"}},
	} {
		if files[c.file+".crt"], files[c.file+".key"], err = c.by.issue(c.id); err != nil {
			return err
		}
	}
	for _, user := range []string{"kube-controller-manager", "kube-scheduler"} {
		if files[user+".kubeconfig"], err = p.kubeconfig(identity{commonName: "system:" + user}); err != nil {
			return err
		}
	}
	return writeFiles(dir, files)
}

// node writes what kubelet and kube-proxy need.
func (p *pki) node(dir string, h wire.Host) error {
	files := map[string][]byte{"ca.crt": p.clusterPEM}
	cert, key, err := p.cluster.issue(kubeletIdentity(h))
	if err != nil {
		return err
	}
	files["kubelet.crt"], files["kubelet.key"] = cert, key
	files["kubelet.kubeconfig"] = kubeconfig(p.server, p.clusterPEM, cert, key)
	if files["kube-proxy.kubeconfig"], err = p.kubeconfig(identity{commonName: "system:kube-proxy"}); err != nil {
		return err
	}
	return writeFiles(dir, files)
}

func (p *pki) admin() ([]byte, error) {
	return p.kubeconfig(identity{commonName: "admin", organization: []string{"system:masters"}})
}

func (p *pki) kubeconfig(id identity) ([]byte, error) {
	cert, key, err := p.cluster.issue(id)
	return kubeconfig(p.server, p.clusterPEM, cert, key), err
}

func kubeconfig(server string, ca, cert, key []byte) []byte {
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters:
- name: lab
  cluster: {server: "%s", certificate-authority-data: %s}
users:
- name: lab
  user: {client-certificate-data: %s, client-key-data: %s}
contexts:
- name: lab
  context: {cluster: lab, user: lab}
current-context: lab
`, server, b64(ca), b64(cert), b64(key))
}
