package liveness

import (
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
)

// Until a node that is missed was asked, what a speaker writes is not complete.
func TestSilent(t *testing.T) {
	p := newProber(Config{Node: node("a"), Cluster: twoNodes{}, Log: quiet, Changed: func() {}, SilenceChanged: func() {}, KickProbe: func() {}})
	p.set(time.Now(), Known{View: heartbeat.Nodes{Alive: nodes("a")}, Speakers: twoNodes{}.speakers()})
	if s := p.Silence(false); s.Complete || s.missed != 1 {
		t.Errorf("b was never asked: %+v", s)
	}
	p.reach.missed.record(time.Now(), "b", false)
	if s := p.Silence(false); !s.Complete {
		t.Errorf("b was asked: %+v", s)
	}
}
