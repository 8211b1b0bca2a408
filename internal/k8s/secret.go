package k8s

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// membersKey is the entry of the members' Secret; membersKeyLength selects AES-256.
const (
	membersKey       = "key"
	membersKeyLength = 32
)

// EnsureMembersKey creates the Secret that holds the key of the speakers'
// membership, unless it exists. It is never overwritten: a new key would split
// the members.
func (k *Cluster) EnsureMembersKey(ctx context.Context, name string) error {
	secrets := k.clients.kube.CoreV1().Secrets(k.config.Namespace)
	_, err := secrets.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("get secret %s: %w", name, err)
	}
	key := make([]byte, membersKeyLength)
	rand.Read(key) // never fails: crypto/rand
	_, err = secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app.kubernetes.io/name": "holdfast"}},
		Data:       map[string][]byte{membersKey: key},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create secret %s: %w", name, err)
	}
	return nil
}

// MembersKeys reads the keys of the speakers' membership: the one to send with,
// then those that are accepted too, which are all other entries by name. Entries
// that are no keys are left out and named.
func (k *Cluster) MembersKeys(ctx context.Context, name string) (keys [][]byte, unusable []string, err error) {
	secret, err := k.clients.kube.CoreV1().Secrets(k.config.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("get secret %s: %w", name, err)
	}
	key := secret.Data[membersKey]
	if len(key) != membersKeyLength {
		return nil, nil, fmt.Errorf("secret %s has a %d byte %q, want %d bytes: delete the Secret and the controller makes a new one", name, len(key), membersKey, membersKeyLength)
	}
	keys = append(keys, key)
	for _, entry := range slices.Sorted(maps.Keys(secret.Data)) {
		switch key := secret.Data[entry]; {
		case entry == membersKey:
		case len(key) != membersKeyLength:
			unusable = append(unusable, entry)
		default:
			keys = append(keys, key)
		}
	}
	return keys, unusable, nil
}
