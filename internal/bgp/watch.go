package bgp

import (
	"context"
	"net/netip"
	"sync"
	"time"
)

// watch follows the sessions: it logs changes, kicks, and repairs drift.
type watch struct {
	speaker *Speaker
	// seen is the last logged state, by peer.
	seen map[string]view
	asks sync.WaitGroup
}

type view struct {
	up             bool
	text, withheld string
}

func newWatch(s *Speaker) *watch { return &watch{speaker: s, seen: map[string]view{}} }

// run watches until ctx is cancelled.
func (w *watch) run(ctx context.Context) {
	defer w.asks.Wait()
	tick := time.NewTicker(w.speaker.config.RepairInterval)
	defer tick.Stop()
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.speaker.notes.wake:
			if settled == nil {
				settled = time.After(settleTime)
			}
		case <-settled:
			settled = nil
			w.look(ctx)
		case <-tick.C:
			w.look(ctx)
		}
	}
}

// look repairs drift in GoBGP, logs sessions that changed, and kicks.
func (w *watch) look(ctx context.Context) {
	w.speaker.repair()
	changed := false
	now := map[string]view{}
	for _, session := range w.speaker.look() {
		v := view{session.State == Established, session.LastError, session.Withheld}
		now[session.Peer] = v
		before, known := w.seen[session.Peer]
		if known && before == v {
			continue
		}
		changed = true
		log := w.speaker.config.Log.With("peer", session.Peer, "address", session.Address)
		switch {
		case v.withheld != "":
			log.Warn("BGP session is up, with less than it should carry", "reason", v.withheld)
		case v.up:
			log.Info("BGP session is up")
		case before.up:
			log.Warn("BGP session is down", "reason", v.text)
		case v.text != "":
			log.Warn("BGP session does not come up", "reason", v.text)
		}
		w.ask(ctx, session.Address)
	}
	if changed || len(now) != len(w.seen) {
		w.speaker.config.Kick()
	}
	w.seen = now
}

// ask finds the AS of a router with a wrong AS, which GoBGP does not report.
func (w *watch) ask(ctx context.Context, address netip.Addr) {
	if !w.speaker.notes.toAsk(address) {
		return
	}
	for _, p := range w.speaker.list() {
		if have := readSettings(p.Peer); have.address == address {
			w.asks.Go(func() {
				if text := askAS(ctx, have); text != "" {
					w.speaker.notes.answer(address, text)
				}
			})
		}
	}
}

// repair brings GoBGP to the desired state, and counts the repairs.
func (s *Speaker) repair() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.desired == nil || s.left {
		return
	}
	done, err := s.sync()
	s.repairs.add(done)
	if err != nil {
		// Set returned this error before, and its caller logged it.
		s.config.Log.Debug("cannot apply all BGP settings", "error", err)
	}
}
