package main

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/bgp"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// sessionWait is for how long sessions make a speaker wait that the speaker before it did not have either.
const sessionWait = 30 * time.Second

// sessionGate holds a starting speaker unready until its BGP sessions are up, so that a rolling update takes no node's routes
// while the node before has none yet, and a build that breaks BGP stops at its first node. Once open it stays open: a
// router that goes away later is no fault of the speaker.
type sessionGate struct {
	mu  sync.Mutex
	log *slog.Logger
	// began is when everything else was ready.
	began time.Time
	open  bool
	// logged is what check returned last.
	logged string
}

// check returns what the speaker still waits for, and logs what is new. The former speaker's sessions are awaited without limit,
// unless the operator overrides it; where they are not known, the API server is away, and they count like new ones.
func (g *sessionGate) check(now time.Time, sessions []bgp.Session, awaited []string, known, overridden bool) (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.began.IsZero() {
		g.began = now
	}
	var missing []string
	for _, s := range sessions {
		if s.State != bgp.Established {
			missing = append(missing, s.Peer)
		}
	}
	young := now.Sub(g.began) < sessionWait
	switch {
	case g.open || overridden:
	case len(awaited) > 0:
		err = fmt.Errorf("no BGP session with %s, which the speaker before this one had; annotate the Node with %s=true to go on without",
			lb.SomeOf(awaited), v1beta1.AnnotationReadyWithoutSessions)
	case young && !known:
		err = errors.New("the BGP sessions of the speaker before this one are not read")
	case young && len(missing) > 0:
		err = fmt.Errorf("no BGP session with %s yet; ready after %v all the same", lb.SomeOf(missing), sessionWait)
	}
	if g.open = err == nil; !g.open && err.Error() != g.logged {
		g.logged = err.Error()
		g.log.Warn("not ready", "error", err)
	}
	return err
}
