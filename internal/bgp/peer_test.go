package bgp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/config/oc"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

func TestSettingsOf(t *testing.T) {
	address := netip.MustParseAddr("192.0.2.1")
	for _, tt := range []struct {
		name string
		peer lb.Peer
		want settings
	}{
		{"defaults", lb.Peer{Address: address},
			settings{address: address, port: 179, holdTime: 90, keepalive: 30, connect: 120}},
		{"parts of seconds count as whole", lb.Peer{Address: address, Port: 1179, HoldTime: 3 * time.Second, ConnectTime: time.Millisecond},
			settings{address: address, port: 1179, holdTime: 3, keepalive: 1, connect: 1}},
		{"keepalive", lb.Peer{Address: address, HoldTime: 9 * time.Second, KeepaliveTime: 2 * time.Second, ConnectTime: 5 * time.Second},
			settings{address: address, port: 179, holdTime: 9, keepalive: 2, connect: 5}},
	} {
		got, err := settingsOf(tt.peer)
		if err != nil || got != tt.want {
			t.Errorf("%s: %+v, %v; want %+v", tt.name, got, err, tt.want)
		}
	}
}

// Settings read back from GoBGP are equal; otherwise every Set would reset every session.
func TestReadSettings(t *testing.T) {
	for _, s := range []settings{
		{name: "a", address: netip.MustParseAddr("192.0.2.1"), port: 179, localASN: 1, peerASN: 2, holdTime: 3, keepalive: 1, connect: 5},
		{
			name: "b", address: netip.MustParseAddr("2001:db8::1"), source: netip.MustParseAddr("2001:db8::2"), port: 1179,
			localASN: 4200000000, peerASN: 4200000001, holdTime: 90, keepalive: 30, connect: 120, multiHop: true, gracefulRestart: true,
		},
		{name: "c", address: netip.MustParseAddr("192.0.2.1"), port: 179, localASN: 1, holdTime: 3, keepalive: 1, connect: 5, minTTL: 254, dualStack: true, Password: "x"},
	} {
		if got := readSettings(s.peer()); got != s {
			t.Errorf("%+v reads as %+v", s, got)
		}
	}
}

func TestSpent(t *testing.T) {
	const never = time.Duration(-1)
	const (
		idle        = api.PeerState_SESSION_STATE_IDLE
		established = api.PeerState_SESSION_STATE_ESTABLISHED
		up          = api.PeerState_ADMIN_STATE_UP
		tripped     = api.PeerState_ADMIN_STATE_PFX_CT
	)
	for _, tt := range []struct {
		name  string
		state api.PeerState_SessionState
		admin api.PeerState_AdminState
		down  time.Duration
		want  bool
	}{
		{"never up", idle, up, never, false},
		{"up again", established, up, time.Hour, false},
		{"lost", idle, up, 0, true},
		{"sent too much", idle, tripped, time.Minute, false},
		{"sent too much long ago", idle, tripped, prefixLimitRest + time.Second, true},
	} {
		p := &api.Peer{
			State:  &api.PeerState{SessionState: tt.state, AdminState: tt.admin},
			Timers: &api.Timers{State: &api.TimersState{}},
		}
		if tt.down != never {
			p.Timers.State.Downtime = oc.ProtoTimestamp(time.Now().Add(-tt.down).Unix())
		}
		if got := spent(p); got != tt.want {
			t.Errorf("%s: spent = %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A tag has one meaning for each peer.
func TestTag(t *testing.T) {
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	communities := []lb.Community{{A: 1, B: 2}}
	seen := map[lb.Community]rule{}
	for _, r := range []rule{
		{peer: a}, {peer: b}, {peer: a, localPref: 1}, {peer: a, communities: communities},
		{peer: a, communities: []lb.Community{{Large: true, A: 1, B: 2}}}, {peer: b, communities: communities},
	} {
		if other, found := seen[r.tag()]; found {
			t.Errorf("%+v and %+v have one tag", r, other)
		}
		seen[r.tag()] = r
	}
}
