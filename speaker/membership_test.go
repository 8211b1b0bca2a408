//go:build !race

package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/keyed"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestKeysRead: the error says what a speaker waits for. Once it has a key it keeps it, whatever becomes of the Secret.
func TestKeysRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer(t)
		w := newTestSyncer(noLinks)
		w.atCluster(t, api.config())
		m := &memberKeys{cluster: w.cluster, secret: lb.Key{Namespace: "holdfast", Name: "members"}, log: w.log}
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
		api.set(refuses)               // and no connection is left
		background(t, w.cluster.Run)() // ends what New began
	})
}

// TestKeysFollowed: keys that change are set within a minute, and a speaker asks for nothing until they do.
func TestKeysFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer(t)
		w := newTestSyncer(noLinks)
		w.atCluster(t, api.config())
		hold := func(entries map[string]byte) {
			data := map[string][]byte{}
			for name, first := range entries {
				data[name] = bytes.Repeat([]byte{first}, keyed.Length)
			}
			api.put("/api/v1/secrets", "holdfast/members", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: "members"}, Data: data})
		}
		hold(map[string]byte{keyed.Key: 1, keyed.InUse: 1})
		m := &memberKeys{cluster: w.cluster, secret: lb.Key{Namespace: "holdfast", Name: "members"}, log: w.log}
		keys, err := m.look(t.Context())
		must(t, err)
		var set [][]byte
		stop := background(t, func(ctx context.Context) error {
			m.follow(ctx, keys, func(keys [][]byte) error { set = keys; return nil })
			return nil
		})
		synctest.Wait()
		api.mu.Lock()
		before := api.asked
		api.mu.Unlock()
		time.Sleep(time.Hour)
		if api.mu.Lock(); api.asked != before || set != nil {
			t.Errorf("%d requests in an hour in which nothing changed, %d keys set", api.asked-before, len(set))
		}
		api.mu.Unlock()
		for _, away := range []string{"", fails} {
			api.set(away)
			time.Sleep(time.Minute)
			api.set("")
			first := byte(len(away) + 2)
			hold(map[string]byte{keyed.Key: first, keyed.InUse: first})
			time.Sleep(keyed.Look + time.Second)
			if len(set) == 0 || set[0][0] != first {
				t.Errorf("after the API server was away (%q) it sends with %v, want key %d", away, set, first)
			}
		}
		stop()
		api.set(refuses)               // and no connection is left
		background(t, w.cluster.Run)() // ends what New began
	})
}
