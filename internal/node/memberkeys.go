package node

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/k8s"
	"github.com/holdfast-lb/holdfast/internal/keyed"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// keysTime bounds one read of the members' Secret.
	keysTime = 10 * time.Second
	// readSpread is the longest time until a speaker takes over a change of the Secret. Each takes a random part of it,
	// so that a thousand speakers do not write their SpeakerStates at the same moment.
	readSpread = 10 * time.Second
)

// memberKeys reads the membership's keys from the members' Secret.
type memberKeys struct {
	cluster *k8s.Cluster
	node    string
	// secret is the members' Secret.
	secret lb.Key
	log    *slog.Logger
	ring   keyed.Keyring
	// hasState reports whether the SpeakerState exists, and reported is the version that it has got from await.
	hasState bool
	reported string
	// logged are the unusable entries that were logged last.
	logged []string
}

// keySet has the keys of one version of the members' Secret, and former keys that are still accepted.
type keySet struct {
	// keys are all accepted keys. The first encrypts.
	keys    [][]byte
	version string
}

// await returns the first keys, or an error that says what is missing. While there is no key in use, the SpeakerState
// says which version was read, because the controller puts a key in use when all speakers have read it.
func (m *memberKeys) await(ctx context.Context) (keySet, error) {
	ctx, cancel := context.WithTimeout(ctx, keysTime)
	defer cancel()
	if err := m.ensureState(ctx); err != nil {
		return keySet{}, err
	}
	secret, err := m.cluster.Secret(ctx, m.secret.Name)
	if err != nil {
		return keySet{}, err
	}

	read := m.read(secret)
	if read.keys != nil {
		return read, nil
	}
	if read.version != m.reported {
		if err := m.cluster.WriteKeysVersion(ctx, m.node, read.version); err != nil {
			return keySet{}, err
		}
		m.reported = read.version
	}
	return keySet{}, m.missing(secret)
}

// ensureState creates the SpeakerState if there is none. A speaker must have one before it reads the Secret: the
// controller waits for those that exist.
func (m *memberKeys) ensureState(ctx context.Context) error {
	if m.hasState {
		return nil
	}

	_, err := m.cluster.SpeakerState(ctx, m.node)
	if apierrors.IsNotFound(err) {
		err = m.cluster.WriteKeysVersion(ctx, m.node, "")
	}
	m.hasState = err == nil
	return err
}

// read takes over the content of the Secret. It returns no keys as long as there is no key in use.
func (m *memberKeys) read(secret *corev1.Secret) keySet {
	unusable := keyed.Read(secret.Data).Unusable
	if len(unusable) > 0 && !slices.Equal(unusable, m.logged) {
		m.log.Warn("entries of the members' Secret are not keys and not used",
			"secret", m.secret.Name, "entries", unusable)
	}
	m.logged = unusable

	return keySet{m.ring.Update(secret.Data), secret.ResourceVersion}
}

// missing returns an error that says what a Secret without a key in use lacks.
func (m *memberKeys) missing(secret *corev1.Secret) error {
	switch {
	case secret.ResourceVersion == "":
		return fmt.Errorf("secret %s does not exist: the controller makes it", m.secret.Name)
	case keyed.Read(secret.Data).Wanted == "":
		return fmt.Errorf(
			"secret %s has no key of %d bytes as its entry %s: delete that entry, and the controller makes a key",
			m.secret.Name,
			keyed.Length,
			keyed.Key,
		)
	}
	return fmt.Errorf("secret %s has no entry %s: the controller makes it when every other speaker has read the Secret",
		m.secret.Name, keyed.InUse)
}

// follow sets the keys of each version of the Secret, beginning after the last one, until ctx ends. A watch shows the
// Secret, since a thousand speakers that read it would be most of what all of them ask for.
func (m *memberKeys) follow(ctx context.Context, last keySet, set func(keySet) error) {
	var shown atomic.Pointer[corev1.Secret] // nil before the first version
	changed := make(chan struct{}, 1)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		m.watch(ctx, func(secret *corev1.Secret) {
			shown.Store(secret)
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	defer func() { <-followed }()

	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(rand.N(readSpread)):
		}

		secret := shown.Load()
		if secret.ResourceVersion == last.version {
			continue
		}
		next := m.read(secret)
		if err := set(next); err != nil {
			m.log.Error("set the members' keys", "secret", m.secret.Name, "error", err)
			continue
		}
		if !slices.EqualFunc(next.keys, last.keys, bytes.Equal) {
			m.log.Info("members' keys changed", "secret", m.secret.Name, "accepted", len(next.keys))
		}
		last = next
	}
}

// watch calls show with each version of the Secret until ctx ends. Without the Secret, or while it cannot be read, the
// present keys stay.
func (m *memberKeys) watch(ctx context.Context, show func(*corev1.Secret)) {
	refused := ""
	m.cluster.FollowSecret(ctx, m.secret, func(secret *corev1.Secret, err error) error {
		if err != nil && err.Error() != refused {
			refused = err.Error()
			m.log.Warn("members' Secret cannot be read, its present keys stay", "secret", m.secret.Name, "error", err)
		}
		if err == nil && secret != nil {
			show(secret)
		}
		return nil
	})
}
