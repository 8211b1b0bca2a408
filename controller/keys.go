package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/keyed"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
)

const (
	// keysInterval is how often the members' Secret is read: while the key in use is
	// missing there, a starting speaker waits for it.
	keysInterval = 5 * time.Second
	// keysTime bounds one run, so that it does not act on an outdated Secret.
	keysTime = 10 * time.Second
)

// memberKeys creates the key of the speakers' membership, and lets its owner replace it
// without a gap. A new leader starts with a new memberKeys.
type memberKeys struct {
	cluster *k8s.Cluster
	// secret is the Secret's name.
	secret  string
	log     *slog.Logger
	rotator keyed.Rotator
	// warned is the last message about invalid entries.
	warned string
}

func newMemberKeys(cluster *k8s.Cluster, secret string, log *slog.Logger) *memberKeys {
	return &memberKeys{cluster: cluster, secret: secret, log: log, rotator: keyed.Rotator{NewKey: newKey}}
}

func (m *memberKeys) run(ctx context.Context) error {
	sync := func(ctx context.Context) (time.Duration, error) { return keysInterval, m.sync(ctx) }
	return daemon.NewLoop(daemon.LoopConfig{Name: "keys", Log: m.log, Sync: sync}).Run(ctx)
}

func newKey() []byte {
	key := make([]byte, keyed.Length)
	rand.Read(key) // never fails: crypto/rand
	return key
}

func (m *memberKeys) sync(ctx context.Context) error {
	if m.cluster.Uninstalling() {
		return nil // after its deletion the Secret must not be created again
	}
	ctx, cancel := context.WithTimeout(ctx, keysTime)
	defer cancel()
	secret, err := m.cluster.Secret(ctx, m.secret)
	for err == nil {
		now := keyed.Secret{Data: secret.Data, Version: secret.ResourceVersion}
		// A speaker writes its SpeakerState only once it has a key, and it has that whether it is ready or not. A state
		// that outlives its speaker delays a first key by minutes, no more; uninstalling deletes it.
		want, why := m.rotator.Decide(now, len(m.cluster.SpeakerStates()) > 0, time.Now())
		if want == nil {
			m.warnUnusable(secret)
			return nil
		}
		if secret, err = m.cluster.WriteSecret(ctx, secret, want); err == nil {
			m.log.Info("members' Secret written", "secret", m.secret, "why", why)
		}
	}
	if k8s.Overtaken(err) {
		m.log.Debug("write overtaken by another, deciding again", "error", err)
		return nil
	}
	return err
}

// warnUnusable reports entries that are no keys, once.
func (m *memberKeys) warnUnusable(secret *corev1.Secret) {
	var entries []string
	for _, name := range keyed.Read(secret.Data).Unusable {
		entries = append(entries, fmt.Sprintf("%s (%d bytes)", name, len(secret.Data[name])))
	}
	message := ""
	if len(entries) > 0 {
		message = fmt.Sprintf("not used, since a key has %d bytes: %s", keyed.Length, strings.Join(entries, ", "))
	}
	if message != "" && message != m.warned {
		o := lb.Object{Kind: "Secret", Namespace: secret.Namespace, Name: secret.Name}
		m.log.Warn(
			"members' Secret has entries that are no keys",
			"secret",
			o,
			"reason",
			lb.InvalidKey,
			"message",
			message,
		)
		m.cluster.Event(o, secret.UID, false, lb.InvalidKey, lb.WithRemedies(message, lb.InvalidKey))
	}
	m.warned = message
}
