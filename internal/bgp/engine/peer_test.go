package engine

import (
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/config/oc"
)

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
			// The clock of the day was set back by a year meanwhile, which says nothing.
			p.Timers.State.Downtime = oc.ProtoTimestamp(time.Now().AddDate(1, 0, 0).Unix())
		}
		if got := spent(p, time.Now().Add(-tt.down)); got != tt.want {
			t.Errorf("%s: spent = %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]uint64{9 * time.Second: 9, 1500 * time.Millisecond: 2, time.Millisecond: 1, 0: 0} {
		if got := seconds(d); got != want {
			t.Errorf("%v is %d seconds, want %d: parts count as whole", d, got, want)
		}
	}
}
