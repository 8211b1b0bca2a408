//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"
)

const (
	tlsSecret = "e2e-tls"
	// grantTime is how long a right that is granted may take until proxies read the Secret.
	grantTime = time.Minute
)

// grant lets the proxies read the Secret of a namespace.
const grant = `{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: e2e-tls, namespace: %[1]s},
  rules: [{apiGroups: [""], resources: [secrets], resourceNames: [e2e-tls], verbs: [get, list, watch]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: e2e-tls, namespace: %[1]s},
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: e2e-tls}, subjects: [{kind: ServiceAccount, name: %[2]s, namespace: %[3]s}]}
`

// proxyTLS has TLS end at proxies: not before the namespace grants its Secret, then with HTTP/2, and with another pair when there is one.
func proxyTLS(t *testing.T, e *env) {
	const name = "proxy-tls"
	addresses := e.service(t, e.app, name, to(8080), func(s *corev1.Service) { s.Spec.Ports[0].Port = 443 },
		openStack("default-tls-container-ref", "secret:"+tlsSecret))
	e.reports(t, name, "may not be read by the proxies")
	e.silent(t, addresses)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: tlsSecret}, Type: corev1.SecretTypeTLS}
	secret.Data = tlsPair(t)
	secrets := e.Kube.CoreV1().Secrets(e.app.Namespace)
	_, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{})
	must(t, err)
	undo(t, func(ctx context.Context) error {
		return unlessGone(secrets.Delete(ctx, tlsSecret, metav1.DeleteOptions{}))
	})
	e.apply(t, fmt.Sprintf(grant, e.app.Namespace, testbed.Proxy, testbed.Namespace))
	e.endsTLS(t, addresses, secret)
	for _, a := range addresses {
		if out, _ := e.curl(t.Context(), "http", a); strings.HasPrefix(out, "200") {
			t.Errorf("%s serves plain HTTP on the port of TLS: %q", a, out)
		}
	}
	secret.Data = tlsPair(t)
	_, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
	must(t, err)
	e.endsTLS(t, addresses, secret)
	e.reports(t, name, "")
}

// reports waits until a Service's condition has a fault with this text in its sentence; "" is for no fault.
func (e *env) reports(t *testing.T, service, fault string) {
	t.Helper()
	must(t, testbed.Until(t.Context(), grantTime, fmt.Sprintf("a condition with %q", fault), func(ctx context.Context) error {
		c, err := e.ServiceCondition(ctx, e.app.Namespace, service, v1beta1.ConditionAnnotationsHonoured)
		if fault == "" && (err != nil || c.Status != metav1.ConditionFalse) {
			return nil
		}
		if err == nil && (c.Status != metav1.ConditionFalse || fault == "" || !strings.Contains(c.Message, fault)) {
			err = fmt.Errorf("it is %s %s: %s", c.Status, c.Reason, c.Message)
		}
		return err
	}))
}

func tlsPair(t *testing.T) map[string][]byte {
	t.Helper()
	crt, key, err := certutil.GenerateSelfSignedCertKey("e2e.example", nil, nil)
	must(t, err)
	return map[string][]byte{corev1.TLSCertKey: crt, corev1.TLSPrivateKeyKey: key}
}

// endsTLS waits until all addresses answer by HTTP/2 with the Secret's certificate.
func (e *env) endsTLS(t *testing.T, addresses []netip.Addr, secret *corev1.Secret) {
	t.Helper()
	line := strings.Split(string(secret.Data[corev1.TLSCertKey]), "\n")[2] // of the first certificate, behind what all have
	for _, a := range addresses {
		must(t, testbed.Until(t.Context(), grantTime, "TLS at "+a.String(), func(ctx context.Context) error {
			out, err := e.curl(ctx, "https", a)
			if err == nil && (!strings.HasPrefix(out, "200 2 ") || !strings.Contains(out, line)) {
				err = fmt.Errorf("curl says %q", out)
			}
			return err
		}))
	}
}

// curl asks port 443 of an address from the client, and returns code and version of HTTP, and the certificates.
func (e *env) curl(ctx context.Context, scheme string, a netip.Addr) (string, error) {
	return e.On(ctx, testbed.Client, "curl", "-sk", "--noproxy", "*", "-m", "2", "-o", "/dev/null", "-w", "%{http_code} %{http_version} %{certs}",
		scheme+"://"+netip.AddrPortFrom(a, 443).String()+"/")
}
