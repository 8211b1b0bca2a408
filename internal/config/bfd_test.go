package config

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

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

// A profile that cannot be used is a Problem, and its peers run without BFD; all other peers run as they should.
func TestBFDProfileProblems(t *testing.T) {
	objects := Objects{
		BFDProfiles: []*v1beta1.BFDProfile{
			profile("good", v1beta1.BFDProfileSpec{}),
			profile("microseconds", v1beta1.BFDProfileSpec{ReceiveInterval: new(int32(300_000))}),
			profile("one", v1beta1.BFDProfileSpec{DetectMultiplier: new(int32(1))}),
			profile("echo", v1beta1.BFDProfileSpec{EchoMode: true}),
		},
		Peers: []*v1beta1.BGPPeer{
			bfdPeer("a", "192.0.2.1", "good"), bfdPeer("b", "192.0.2.2", "microseconds"), bfdPeer("c", "192.0.2.3", "missing"),
			bfdPeer("d", "192.0.2.4", "echo"),
		},
	}
	state, problems := Compile(objects, Options{})
	var got []string
	for _, p := range problems {
		got = append(got, p.Object.String()+": "+string(p.Reason)+": "+p.Message)
	}
	want := []string{
		"BFDProfile echo: InvalidProfile: echo mode is not supported, and speakers send no Echo packets: remove echoMode, and choose shorter intervals",
		"BFDProfile microseconds: InvalidProfile: not used: receiveInterval 300000 is not between 10 and 60000",
		"BFDProfile one: InvalidProfile: not used: detectMultiplier 1 is not between 2 and 255",
		`BGPPeer b: UnknownReference: spec.bfdProfile names BFDProfile "microseconds", which does not exist or is not in force: the session runs without BFD`,
		`BGPPeer c: UnknownReference: spec.bfdProfile names BFDProfile "missing", which does not exist or is not in force: the session runs without BFD`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for _, p := range state.Peers {
		if want := p.Name == "a" || p.Name == "d"; (p.BFD != nil) != want {
			t.Errorf("peer %s has BFD %v", p.Name, p.BFD)
		}
	}
}
