package heartbeat

import (
	"syscall"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// ready waits until every speaker hears every other.
func ready(t testing.TB, speakers []*speaker) {
	t.Helper()
	for _, s := range speakers {
		for _, o := range speakers {
			s.await(t, o.name+" is alive", sees(o, detect.Alive))
		}
	}
}

func addresses(t *testing.T, body func(t *testing.T, address string)) {
	for family, address := range map[string]string{"IPv4": "192.0.2.%d", "IPv6": "2001:db8::%d"} {
		t.Run(family, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) { body(t, address) })
		})
	}
}

// Three processes on a real network: to all others a killed one is SpeakerDown, and an unplugged one is dead. A kernel
// refuses packets once all threads of the process have ended, and seldom; the hold of the killed one allows for that.
func TestLoss(t *testing.T) {
	addresses(t, func(t *testing.T, address string) {
		s := cluster(t, 3, address, 200)
		ready(t, s)
		killed := s[0].signal(t, syscall.SIGKILL)
		for _, o := range s[1:] {
			l := o.await(t, "killed is SpeakerDown", sees(s[0], detect.SpeakerDown))
			t.Logf("SpeakerDown to %s after %v", o.name, l.At-killed)
		}
		s[0].ns.SetDown("eth0")
		for _, o := range s[1:] {
			o.await(t, "killed is dead with its node", sees(s[0], detect.Dead))
		}
		pulled := boottime()
		s[1].ns.SetDown("eth0")
		l := s[2].await(t, "unplugged is dead", sees(s[1], detect.Dead))
		t.Logf("dead to the last after %v", l.At-pulled)
	})
}

// The heartbeat process goes on for a speaker that is stopped, but not for long; and a speaker that
// runs again after that knows that others serve.
func TestStoppedSpeaker(t *testing.T) {
	addresses(t, func(t *testing.T, address string) {
		s := cluster(t, 3, address, 20) // for a second: what does not run for less, as on a busy machine, is no matter here
		ready(t, s)
		s[0].await(t, "the lease is valid", func(l line) bool { return l.View.Settled })
		stopped := s[0].signal(t, syscall.SIGSTOP)
		l := s[1].await(t, "stopped is dead", sees(s[0], detect.Dead))
		if took := l.At - stopped; took < detect.SpeakerDownTime-2*keepaliveInterval {
			t.Errorf("dead after %v", took)
		}
		continued := s[0].signal(t, syscall.SIGCONT)
		if l = s[0].await(t, "it runs again", func(l line) bool {
			return l.Woke && l.At >= continued
		}); l.Valid && l.View.Epoch == 1 {
			t.Error("its lease was valid in the first moment")
		}
		s[0].await(t, "it knows that it was declared dead", sees(s[0], detect.HoldDown))
		s[1].await(t, "it is back", sees(s[0], detect.HoldDown))
	})
}

// A speaker whose heartbeat process ends starts it again, and no node declares it dead.
func TestHeartbeatProcessEnds(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		s := cluster(t, 2, "192.0.2.%d", 200)
		ready(t, s)
		before := s[0].await(t, "it may act", func(l line) bool { return l.View.Settled })
		if err := syscall.Kill(before.Child, syscall.SIGKILL); err != nil {
			t.Fatalf("kill heartbeat process %d: %v", before.Child, err)
		}
		after := s[0].await(t, "it sends heartbeats again, hears the other and may act", func(l line) bool {
			return l.Child != 0 && l.Child != before.Child && l.View.Settled && sees(s[1], detect.Alive)(l)
		})
		if after.View.Epoch <= before.View.Epoch {
			t.Errorf("what was planned in epoch %d still holds in epoch %d", before.View.Epoch, after.View.Epoch)
		}
		if after.Restarts != 1 {
			t.Errorf("%d restarts are counted, want 1", after.Restarts)
		}
		s[1].await(t, "it never was away", sees(s[0], detect.Alive))
	})
}

// A heartbeat process that hangs is killed and started again.
func TestHeartbeatProcessHangs(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		s := cluster(t, 2, "192.0.2.%d")
		ready(t, s)
		before := s[0].await(t, "it may act", func(l line) bool { return l.View.Settled })
		if err := syscall.Kill(before.Child, syscall.SIGSTOP); err != nil {
			t.Fatalf("stop heartbeat process %d: %v", before.Child, err)
		}
		s[0].await(t, "it sends heartbeats again", func(l line) bool {
			return l.Child != 0 && l.Child != before.Child && l.View.Settled
		})
	})
}

// A process that was stopped knows it before it does anything else.
//
// Trap: a loser that steps down late (PureLB).
func TestStoppedProcess(t *testing.T) {
	addresses(t, func(t *testing.T, address string) {
		s := cluster(t, 3, address)
		ready(t, s)
		epoch := s[0].await(t, "the lease is valid", func(l line) bool { return l.View.Settled }).View.Epoch
		stopped := s[0].signalAll(t, syscall.SIGSTOP)
		l := s[1].await(t, "stopped is dead", sees(s[0], detect.Dead))
		t.Logf("dead after %v", l.At-stopped)
		nstest.Until(t, within, "a second and a half has passed", func() bool { return boottime()-stopped > 1500*ms })
		continued := s[0].signalAll(t, syscall.SIGCONT)
		// Confirmed again it would be valid in a later epoch.
		l = s[0].await(t, "it runs again", func(l line) bool { return l.Woke && l.At >= continued })
		if l.Valid && l.View.Epoch == epoch {
			t.Error("its lease was valid in the first moment")
		}
		s[0].await(t, "it knows that it was declared dead", sees(s[0], detect.HoldDown))
		s[0].await(t, "it may act again", func(l line) bool { return l.View.Settled && l.View.Epoch > epoch })
		s[1].await(t, "it is back", sees(s[0], detect.HoldDown))
	})
}
