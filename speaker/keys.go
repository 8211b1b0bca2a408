package main

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/members"
)

// keysInterval is between looks at the members' keys. Rotating them takes a few
// steps, each to be waited out so long.
const keysInterval = time.Minute

// followKeys takes over keys that are added, put first or removed, until ctx ends.
func (w *syncer) followKeys(ctx context.Context, m *members.Members, secret string, keys [][]byte) error {
	tick := time.NewTicker(keysInterval)
	defer tick.Stop()
	var said []string
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, unusable, err := w.cluster.MembersKeys(ctx, secret)
		if err != nil {
			continue // what we have still serves, and the API server may be away
		}
		if !slices.Equal(unusable, said) {
			said = unusable
			w.log.Warn("entries of the members' Secret are no keys and are not used", "secret", secret, "entries", unusable)
		}
		if slices.EqualFunc(now, keys, bytes.Equal) {
			continue
		}
		if err := m.SetKeys(now); err != nil {
			w.log.Error("members' keys are not taken over", "secret", secret, "error", err)
			continue
		}
		keys = now
		w.log.Info("members' keys changed", "secret", secret, "accepted", len(keys))
	}
}
