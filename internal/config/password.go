package config

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

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
		if spec.Password == "" {
			return nil
		}
		return checkPassword("password", spec.Password)
	}
	if spec.Password != "" {
		return errors.New("write either password or passwordSecret")
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
