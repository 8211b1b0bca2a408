package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/keyed"
)

// keysTime bounds one read of the members' Secret.
const keysTime = 10 * time.Second

// memberKeys reads the membership's keys from the members' Secret.
type memberKeys struct {
	cluster *k8s.Cluster
	// secret is the name of the Secret.
	secret string
	log    *slog.Logger
	ring   keyed.Ring
	// logged are the unusable entries that were logged last.
	logged []string
}

// look reads the Secret. It returns the keys, of which the first encrypts, and when to look again. Without keys it
// returns an error that says what is missing.
func (m *memberKeys) look(ctx context.Context) (keys [][]byte, again time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, keysTime)
	defer cancel()
	secret, err := m.cluster.Secret(ctx, m.secret)
	if err != nil {
		return nil, keyed.Retry, err
	}
	now := keyed.Read(secret.Data)
	if len(now.Unusable) > 0 && !slices.Equal(now.Unusable, m.logged) {
		m.log.Warn("entries of the members' Secret are not keys and not used", "secret", m.secret, "entries", now.Unusable)
	}
	m.logged = now.Unusable
	keys, again = m.ring.Look(keyed.Secret{Data: secret.Data, Version: secret.ResourceVersion}, time.Now())
	switch {
	case keys != nil:
		return keys, again, nil
	case secret.ResourceVersion == "":
		return nil, again, fmt.Errorf("secret %s does not exist: the controller makes it", m.secret)
	case now.Wanted == "":
		return nil, again, fmt.Errorf("secret %s has no key of %d bytes as its entry %s: delete that entry, and the controller makes one", m.secret, keyed.Length,
			keyed.Key)
	}
	return nil, again, fmt.Errorf("secret %s has no entry %s: the controller makes it; without it this speaker starts when all others know the key", m.secret,
		keyed.InUse)
}

// follow sets the keys of the Secret whenever these change, until ctx ends.
func (m *memberKeys) follow(ctx context.Context, keys [][]byte, set func([][]byte) error) error {
	next := time.NewTimer(keyed.Look)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		now, again, err := m.look(ctx)
		next.Reset(again)
		if err != nil || slices.EqualFunc(now, keys, bytes.Equal) {
			continue // the present keys still work, and the API server may be away
		}
		if err := set(now); err != nil {
			m.log.Error("set the members' keys", "secret", m.secret, "error", err)
			continue
		}
		keys = now
		m.log.Info("members' keys changed", "secret", m.secret, "accepted", len(keys))
	}
}
