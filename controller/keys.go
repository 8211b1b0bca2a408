package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
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
	// waitInterval is the same while a step waits for speakers, until that is reported: at the first installation all
	// speakers wait for two steps.
	waitInterval = time.Second
	// keysTimeout bounds one run, so that it does not act on an outdated Secret.
	keysTimeout = 10 * time.Second
	// reportInterval is the time until a rotation that waits is reported, and until it is reported again. Before each
	// report the pods are listed, which are many.
	reportInterval = time.Minute
	// maxNamedNodes bounds the nodes that a report names.
	maxNamedNodes = 10
)

// keyRotation creates the key of the speakers' membership, and rotates it when its owner writes another one. A new
// leader starts with a new keyRotation.
type keyRotation struct {
	cluster *k8s.Cluster
	// secret is the Secret's name.
	secret  string
	log     *slog.Logger
	rotator keyed.Rotator
	// reportAt is the time of the next report about a rotation that waits; zero while none does.
	reportAt time.Time
	// warned are the last warnings by their reasons.
	warned map[lb.Reason]string
}

// newKeyRotation returns a keyRotation for the Secret of that name.
func newKeyRotation(cluster *k8s.Cluster, secret string, log *slog.Logger) *keyRotation {
	return &keyRotation{
		cluster: cluster,
		secret:  secret,
		log:     log,
		rotator: keyed.Rotator{NewKey: newKey},
		warned:  map[lb.Reason]string{},
	}
}

// run runs the loop until ctx is cancelled.
func (m *keyRotation) run(ctx context.Context) error {
	sync := func(ctx context.Context) (time.Duration, error) {
		err := m.sync(ctx, time.Now())
		return m.interval(), err
	}
	loop := daemon.NewLoop(daemon.LoopConfig{
		Name: "keys",
		Log:  m.log,
		Sync: sync,
	})
	return loop.Run(ctx)
}

// interval returns the time until the next run.
func (m *keyRotation) interval() time.Duration {
	waits := !m.reportAt.IsZero()
	isReported := m.warned[lb.RotationWaits] != ""
	if waits && !isReported {
		return waitInterval
	}

	return keysInterval
}

// newKey returns a random key.
func newKey() []byte {
	key := make([]byte, keyed.Length)
	rand.Read(key) // crypto/rand never fails
	return key
}

// sync writes steps of the rotation until there is none to take.
func (m *keyRotation) sync(ctx context.Context, at time.Time) error {
	if m.cluster.Uninstalling() {
		return nil // the deleted Secret must not be created again
	}

	ctx, cancel := context.WithTimeout(ctx, keysTimeout)
	defer cancel()
	for {
		isWritten, err := m.step(ctx, at)
		if k8s.Overtaken(err) {
			m.log.Debug("write overtaken by another, deciding again", "error", err)
			return nil
		}
		if err != nil || !isWritten {
			return err
		}
	}
}

// step reads the Secret and writes it if needed.
func (m *keyRotation) step(ctx context.Context, at time.Time) (isWritten bool, err error) {
	secret, err := m.cluster.Secret(ctx, m.secret)
	if err != nil {
		return false, err
	}

	m.warnUnusable(secret)

	var waits bool
	var failed error
	want, reason := m.rotator.Decide(secret.Data, func() bool {
		waits, failed = m.waits(ctx, at, secret)
		return !waits && failed == nil
	})

	if !waits && failed == nil {
		m.reportAt = time.Time{}
		delete(m.warned, lb.RotationWaits)
	}
	if want == nil {
		return false, failed
	}

	_, err = m.cluster.WriteSecret(ctx, secret, want)
	if err != nil {
		return false, err
	}

	m.log.Info("members' Secret written", "secret", m.secret, "why", reason)
	return true, nil
}

// waits reports whether the next step must wait, because speakers have not read this version of the Secret. If the
// cache shows none, it asks the API server itself: a speaker that has just been started may have read an older version.
func (m *keyRotation) waits(ctx context.Context, at time.Time, secret *corev1.Secret) (bool, error) {
	behind := nodesBehind(m.cluster.SpeakerStates(), secret.ResourceVersion)
	if m.reportAt.IsZero() {
		m.reportAt = at.Add(reportInterval)
	}

	isDue := !at.Before(m.reportAt)
	if len(behind) > 0 && !isDue {
		return true, nil
	}

	states, err := m.cluster.FreshSpeakerStates(ctx)
	if err != nil {
		return false, err
	}

	behind = nodesBehind(states, secret.ResourceVersion)
	if len(behind) == 0 || !isDue {
		return len(behind) > 0, nil
	}

	// A node keeps its SpeakerState when it no longer has a speaker.
	withSpeaker, err := m.cluster.NodesWithSpeaker(ctx)
	if err != nil {
		return false, err
	}

	behind = slices.DeleteFunc(behind, func(node string) bool {
		return !withSpeaker[node]
	})
	if len(behind) > 0 {
		m.reportAt = at.Add(reportInterval)
		m.reportWaiting(secret, behind)
	}

	return len(behind) > 0, nil
}

// nodesBehind returns the nodes whose speakers do not report that they have read this version of the Secret.
func nodesBehind(states []*v1beta1.SpeakerState, version string) (behind []string) {
	for _, s := range states {
		if s.Status.KeysVersion != version {
			behind = append(behind, s.Name)
		}
	}

	return behind
}

// reportWaiting reports that the rotation waits for the speakers on these nodes.
func (m *keyRotation) reportWaiting(secret *corev1.Secret, nodes []string) {
	named := strings.Join(nodes[:min(len(nodes), maxNamedNodes)], ", ")
	unnamed := len(nodes) - maxNamedNodes
	if unnamed > 0 {
		named = fmt.Sprintf("%s and %d more", named, unnamed)
	}

	m.warn(secret, lb.RotationWaits, "the rotation waits until these nodes' speakers have read the Secret: "+named)
}

// warn reports a problem of the Secret by an Event, and logs it once.
func (m *keyRotation) warn(secret *corev1.Secret, reason lb.Reason, message string) {
	o := lb.Object{
		Kind:      "Secret",
		Namespace: secret.Namespace,
		Name:      secret.Name,
	}
	if message != m.warned[reason] {
		m.log.Warn("members' Secret", "secret", o, "reason", reason, "message", message)
	}

	m.warned[reason] = message
	m.cluster.Event(o, secret.UID, false, reason, lb.WithRemedies(message, reason))
}

// warnUnusable reports entries that are not valid keys, once.
func (m *keyRotation) warnUnusable(secret *corev1.Secret) {
	var entries []string
	for _, name := range keyed.Read(secret.Data).Unusable {
		length := len(secret.Data[name])
		entries = append(entries, fmt.Sprintf("%s (%d bytes)", name, length))
	}

	message := ""
	if len(entries) > 0 {
		message = fmt.Sprintf("not used, since a key has %d bytes: %s", keyed.Length, strings.Join(entries, ", "))
	}

	switch message {
	case "":
		delete(m.warned, lb.InvalidKey)
	case m.warned[lb.InvalidKey]:
	default:
		m.warn(secret, lb.InvalidKey, message)
	}
}
