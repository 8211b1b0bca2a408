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
	// keysInterval is the time between two reads of the members' Secret. Starting speakers wait while the key in use is
	// missing there.
	keysInterval = 5 * time.Second
	// keysTimeout bounds one run, so that it does not act on an outdated Secret.
	keysTimeout = 10 * time.Second
)

// memberKeys creates the key of the speakers' membership, and rotates it when its owner writes another one. A new
// leader starts with a new memberKeys.
type memberKeys struct {
	cluster *k8s.Cluster
	// secret is the Secret's name.
	secret  string
	log     *slog.Logger
	rotator keyed.Rotator
	// warned is the last warning about invalid entries.
	warned string
}

func newMemberKeys(cluster *k8s.Cluster, secret string, log *slog.Logger) *memberKeys {
	return &memberKeys{cluster: cluster, secret: secret, log: log, rotator: keyed.Rotator{NewKey: newKey}}
}

// run runs the loop until ctx is cancelled.
func (m *memberKeys) run(ctx context.Context) error {
	sync := func(ctx context.Context) (time.Duration, error) { return keysInterval, m.sync(ctx) }
	return daemon.NewLoop(daemon.LoopConfig{Name: "keys", Log: m.log, Sync: sync}).Run(ctx)
}

// newKey returns a random key.
func newKey() []byte {
	key := make([]byte, keyed.Length)
	rand.Read(key) // crypto/rand never fails
	return key
}

// sync writes steps of the rotation until there is none to take.
func (m *memberKeys) sync(ctx context.Context) error {
	if m.cluster.Uninstalling() {
		return nil // the deleted Secret must not be created again
	}

	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	secret, err := m.cluster.Secret(ctx, m.secret)
	for err == nil {
		// A speaker writes its SpeakerState only once it has a key, whether it is ready or not. A state that outlives its
		// speaker delays a first key by minutes at most; uninstalling deletes it.
		speakersRun := len(m.cluster.SpeakerStates()) > 0
		content := keyed.Secret{Data: secret.Data, Version: secret.ResourceVersion}
		want, reason := m.rotator.Decide(content, speakersRun, time.Now())
		if want == nil {
			m.warnUnusable(secret)
			return nil
		}

		secret, err = m.cluster.WriteSecret(ctx, secret, want)
		if err == nil {
			m.log.Info("members' Secret written", "secret", m.secret, "why", reason)
		}
	}

	if k8s.Overtaken(err) {
		m.log.Debug("write overtaken by another, deciding again", "error", err)
		return nil
	}
	return err
}

// warnUnusable reports entries that are not valid keys, once.
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
		m.log.Warn("members' Secret has entries that are no keys", "secret", o,
			"reason", lb.InvalidKey, "message", message)
		m.cluster.Event(o, secret.UID, false, lb.InvalidKey, lb.WithRemedies(message, lb.InvalidKey))
	}
	m.warned = message
}
