package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

func secretObject(namespace, name string, kind corev1.SecretType, password string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Type: kind,
		Data: map[string][]byte{"username": []byte("nobody"), "password": []byte(password)},
	}
}

// A peer whose password cannot be had is not used, and no message shows a password.
func TestPasswordSecret(t *testing.T) {
	const own, password = "holdfast-system", "Geheim-7"
	const missing = `namespace "holdfast-system" has no Secret "s" of type kubernetes.io/basic-auth: create it`
	ref := v1beta1.SecretReference{Name: "s"}
	for _, tt := range []struct {
		name   string
		ref    v1beta1.SecretReference
		secret *corev1.Secret
		want   string
	}{
		{"ours", ref, secretObject(own, "s", corev1.SecretTypeBasicAuth, password), ""},
		{"ours by name", v1beta1.SecretReference{Name: "s", Namespace: own}, secretObject(own, "s", corev1.SecretTypeBasicAuth, password), ""},
		{"no such", v1beta1.SecretReference{Name: "s", Namespace: own}, secretObject(own, "t", corev1.SecretTypeBasicAuth, password), missing},
		{"another type", ref, secretObject(own, "s", corev1.SecretTypeOpaque, password), missing},
		{"of a tenant", ref, secretObject("tenant", "s", corev1.SecretTypeBasicAuth, password), missing},
		{"asked of a tenant", v1beta1.SecretReference{Name: "s", Namespace: "tenant"}, secretObject("tenant", "s", corev1.SecretTypeBasicAuth, password),
			`passwordSecret is in namespace "tenant", and only Holdfast's own, "holdfast-system", is read: create the Secret there`},
		{"empty", ref, secretObject(own, "s", corev1.SecretTypeBasicAuth, ""), `entry "password" of Secret "s" must have 1 to 80 characters, and has 0`},
		{"with a line break", ref, secretObject(own, "s", corev1.SecretTypeBasicAuth, password+"\n"),
			`entry "password" of Secret "s" must have printable ASCII characters without spaces only; a line break at its end is a frequent mistake`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, problems := Compile(Objects{SecretNamespace: own, Secrets: []*corev1.Secret{tt.secret}, Peers: []*v1beta1.BGPPeer{
				peerObject("p", 1, func(s *v1beta1.BGPPeerSpec) { s.PasswordSecret = &tt.ref }),
				peerObject("other", 2, func(s *v1beta1.BGPPeerSpec) { s.PeerAddress = "172.31.0.2" }),
			}}, Options{})
			var want []string
			used := map[string]lb.Secret{"other": "", "p": password}
			if tt.want != "" {
				want = []string{"BGPPeer p PasswordMissing: not used: " + tt.want}
				delete(used, "p")
			}
			got := map[string]lb.Secret{}
			for _, p := range s.Peers {
				got[p.Name] = p.Password
			}
			texts := problemTexts(problems)
			if diff := cmp.Diff(used, got) + cmp.Diff(want, texts); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if strings.Contains(strings.Join(texts, "\n"), password) {
				t.Errorf("a message shows the password: %v", texts)
			}
		})
	}
}
