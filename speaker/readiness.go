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

// check returns what the speaker still waits for, and logs what is new.
func (g *sessionGate) check(now time.Time, sessions []bgp.Session, former map[string]bool, known, overridden bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.closed(now, sessions, former, known, overridden)
	if err != nil && err.Error() != g.logged {
		g.logged = err.Error()
		g.log.Warn("not ready", "error", err)
	}
	return err
}

// closed is check without the log. The former speaker's sessions are waited for without limit, unless the
// operator says otherwise; where they are unknown, the API server is away, and they count like new ones.
func (g *sessionGate) closed(now time.Time, sessions []bgp.Session, former map[string]bool, known, overridden bool) error {
	if g.began.IsZero() {
		g.began = now
	}
	var lost, missing []string
	for _, s := range sessions {
		switch {
		case s.State == bgp.Established:
		case former[s.Peer]:
			lost = append(lost, s.Peer)
		default:
			missing = append(missing, s.Peer)
		}
	}
	young := now.Sub(g.began) < sessionWait
	switch {
	case g.open || overridden:
	case len(lost) > 0:
		return fmt.Errorf("no BGP session with %s, which the speaker before this one had; annotate the Node with %s=true to go on without",
			lb.SomeOf(lost), v1beta1.AnnotationReadyWithoutSessions)
	case young && !known:
		return errors.New("the BGP sessions of the speaker before this one are not read")
	case young && len(missing) > 0:
		return fmt.Errorf("no BGP session with %s yet; ready after %v all the same", lb.SomeOf(missing), sessionWait)
	}
	g.open = true
	return nil
}
