package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// communityObject has names, each followed by its value.
func communityObject(name string, second int64, namesAndValues ...string) *v1beta1.Community {
	o := &v1beta1.Community{ObjectMeta: meta(name, second)}
	for i := 0; i < len(namesAndValues); i += 2 {
		o.Spec.Communities = append(o.Spec.Communities, v1beta1.CommunityAlias{Name: namesAndValues[i], Value: namesAndValues[i+1]})
	}
	return o
}

// A name has one meaning: the standard's, else the oldest object's.
func TestAliases(t *testing.T) {
	_, problems := Compile(Objects{Communities: []*v1beta1.Community{
		communityObject("old", 1, "backup", "64512:80", "wide", "64512:65536"),
		communityObject("young", 2, "backup", "64512:81", "no-export", "64512:1", "wide", "large:64512:0:65536"),
		communityObject("twin", 3, "backup", "64512:80", "wide", "large:64512:0:65536"),
	}}, Options{})
	want := []string{
		`Community old InvalidCommunity: spec.communities[1] is not known: "64512:65536" is not a community: write two numbers up to 65535 (65000:100), or ` +
			`large: and three up to 4294967295 (large:64500:1:2)`,
		`Community young DuplicateAlias: spec.communities[0] is not used: in Community "old", which is older, backup is 64512:80`,
		`Community young DuplicateAlias: spec.communities[1] is not used: no-export is a well-known community, 65535:65281`,
	}
	if diff := cmp.Diff(want, problemTexts(problems)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func profile(name string, s v1beta1.BFDProfileSpec) *v1beta1.BFDProfile {
	return &v1beta1.BFDProfile{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: s}
}

func bfdPeer(name, address, profile string) *v1beta1.BGPPeer {
	return &v1beta1.BGPPeer{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1beta1.BGPPeerSpec{MyASN: 64512, PeerASN: 64513, PeerAddress: address, BFDProfile: profile},
	}
}

// Intervals are milliseconds, as MetalLB has them. Once a peer took such a number for microseconds: 300 became 0.3 ms.
func TestBFDProfile(t *testing.T) {
	objects := Objects{
		BFDProfiles: []*v1beta1.BFDProfile{
			profile("plain", v1beta1.BFDProfileSpec{}),
			profile("all", v1beta1.BFDProfileSpec{
				ReceiveInterval: new(int32(50)), TransmitInterval: new(int32(60)), DetectMultiplier: new(int32(5)), PassiveMode: true,
				MinimumTTL: new(int32(100)), EchoInterval: new(int32(50)),
			}),
		},
		Peers: []*v1beta1.BGPPeer{bfdPeer("a", "192.0.2.1", "plain"), bfdPeer("b", "2001:db8::1", "all"), bfdPeer("c", "192.0.2.3", "")},
	}
	state, problems := Compile(objects, Options{})
	if len(problems) > 0 {
		t.Errorf("%v", problems)
	}
	got := map[string]*lb.BFD{}
	for _, p := range state.Peers {
		got[p.Name] = p.BFD
	}
	want := map[string]*lb.BFD{
		"a": {Transmit: 300 * time.Millisecond, Receive: 300 * time.Millisecond, Multiplier: 3, MinimumTTL: 254},
		"b": {Transmit: 60 * time.Millisecond, Receive: 50 * time.Millisecond, Multiplier: 5, Passive: true, MinimumTTL: 100},
		"c": nil,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// A peer whose profile does not exist runs without BFD; all other peers run as they should.
func TestBFDProfileMissing(t *testing.T) {
	state, problems := Compile(Objects{
		BFDProfiles: []*v1beta1.BFDProfile{profile("good", v1beta1.BFDProfileSpec{})},
		Peers:       []*v1beta1.BGPPeer{bfdPeer("a", "192.0.2.1", "good"), bfdPeer("c", "192.0.2.3", "missing")},
	}, Options{})
	want := []string{`BGPPeer c UnknownReference: spec.bfdProfile names BFDProfile "missing", which does not exist: the session runs without BFD`}
	if diff := cmp.Diff(want, problemTexts(problems)); diff != "" || len(state.Peers) != 2 || state.Peers[0].BFD == nil || state.Peers[1].BFD != nil {
		t.Errorf("%v: -want +got\n%s", state.Peers, diff)
	}
}

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
		{"with spaces", ref, secretObject(own, "s", corev1.SecretTypeBasicAuth, "Geheim 7"), ""},
		{"with a space at its end", ref, secretObject(own, "s", corev1.SecretTypeBasicAuth, password+" "),
			`entry "password" of Secret "s" must have printable ASCII characters only, and no space at its ends; a line break at its end is a frequent mistake`},
		{"no such", v1beta1.SecretReference{Name: "s", Namespace: own}, secretObject(own, "t", corev1.SecretTypeBasicAuth, password), missing},
		{"another type", ref, secretObject(own, "s", corev1.SecretTypeOpaque, password), missing},
		{"of a tenant", ref, secretObject("tenant", "s", corev1.SecretTypeBasicAuth, password), missing},
		{"asked of a tenant", v1beta1.SecretReference{Name: "s", Namespace: "tenant"}, secretObject("tenant", "s", corev1.SecretTypeBasicAuth, password),
			`passwordSecret is in namespace "tenant", and only Holdfast's own, "holdfast-system", is read: create the Secret there`},
		{"empty", ref, secretObject(own, "s", corev1.SecretTypeBasicAuth, ""), `entry "password" of Secret "s" must have 1 to 80 characters, and has 0`},
		{"with a line break", ref, secretObject(own, "s", corev1.SecretTypeBasicAuth, password+"\n"),
			`entry "password" of Secret "s" must have printable ASCII characters only, and no space at its ends; a line break at its end is a frequent mistake`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, problems := Compile(Objects{SecretNamespace: own, Secrets: []*corev1.Secret{tt.secret}, Peers: []*v1beta1.BGPPeer{
				peerObject("p", 1, func(s *v1beta1.BGPPeerSpec) { s.PasswordSecret = &tt.ref }),
				peerObject("other", 2, func(s *v1beta1.BGPPeerSpec) { s.PeerAddress = "172.31.0.2" }),
			}}, Options{})
			var want []string
			used := map[string]lb.Secret{"other": "", "p": lb.Secret(tt.secret.Data[corev1.BasicAuthPasswordKey])}
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
