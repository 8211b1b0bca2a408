package members

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/memberlist"
)

func newKeyring(keys [][]byte) (*memberlist.Keyring, error) {
	if len(keys) == 0 {
		return nil, errors.New("members have no key")
	}
	ring, err := memberlist.NewKeyring(keys, keys[0])
	if err != nil {
		return nil, fmt.Errorf("members' key: %w", err)
	}
	return ring, nil
}

// SetKeys replaces the keys: all are accepted from now on, and the first one encrypts what is sent.
func (m *Members) SetKeys(keys [][]byte) error {
	if _, err := newKeyring(keys); err != nil {
		return err // before anything has changed
	}
	for _, k := range keys {
		if err := m.keys.AddKey(k); err != nil {
			return fmt.Errorf("add a key: %w", err)
		}
	}
	if err := m.keys.UseKey(keys[0]); err != nil {
		return fmt.Errorf("use a key: %w", err)
	}
	// GetKeys returns the ring's own array, in which RemoveKey shifts.
	for _, old := range slices.Clone(m.keys.GetKeys()) {
		if !slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, old) }) {
			if err := m.keys.RemoveKey(old); err != nil {
				return fmt.Errorf("remove a key: %w", err)
			}
		}
	}
	m.Heartbeat.SetKeys(keys)
	return nil
}
