//go:build !race

package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/keyed"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestKeysRead: the error says what a speaker waits for. Once it has a key it keeps it, whatever becomes of the Secret.
func TestKeysRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer(t)
		w := newTestSyncer(noLinks)
		w.atCluster(t, api.config())
		m := &memberKeys{cluster: w.cluster, secret: "members", log: w.log}
		key := func(first byte) []byte { return bytes.Repeat([]byte{first}, keyed.Length) }
		for _, step := range []struct {
			name  string
			away  string
			holds map[string][]byte
			want  [][]byte
			err   string
		}{
			{name: "no Secret", err: "does not exist"},
			{name: "an entry that is no key", holds: map[string][]byte{keyed.Key: []byte("secret")}, err: "no key of 32 bytes"},
			{name: "a key that is not in use", holds: map[string][]byte{keyed.Key: key(1)}, err: "no entry in-use"},
			{name: "a key in use", holds: map[string][]byte{keyed.Key: key(1), keyed.InUse: key(1)}, want: [][]byte{key(1)}},
			{name: "another key", holds: map[string][]byte{keyed.Key: key(2)}, want: [][]byte{key(1), key(2)}},
			{name: "no API server", away: fails, err: "get secret members"},
			{name: "the Secret is gone", want: [][]byte{key(1), key(2)}},
		} {
			api.put("/api/v1/secrets", "holdfast/members", nil)
			if step.holds != nil {
				api.put("/api/v1/secrets", "holdfast/members", &corev1.Secret{
					ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: "members"}, Data: step.holds,
				})
			}
			api.set(step.away)
			keys, err := m.look(t.Context())
			if diff := cmp.Diff(step.want, keys); diff != "" {
				t.Errorf("%s: keys (-want +got):\n%s", step.name, diff)
			}
			if (err != nil) != (step.err != "") || err != nil && !strings.Contains(err.Error(), step.err) {
				t.Errorf("%s: error %v, want %q", step.name, err, step.err)
			}
		}
		api.set(refuses) // and no connection is left
		stopped, stop := context.WithCancel(t.Context())
		stop()
		_ = w.cluster.Run(stopped) // ends what New began
	})
}
