//go:build !race

package node

import (
	"bytes"
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/keyed"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func newMemberKeys(w *Loop) *memberKeys {
	return &memberKeys{
		cluster: w.sources.Cluster,
		node:    w.node,
		secret:  lb.Key{Namespace: "holdfast", Name: "members"},
		log:     w.log,
	}
}

// putKeys stores the members' Secret, given the first bytes of its keys.
func putKeys(api *apiServer, entries map[string]byte) {
	data := map[string][]byte{}
	for name, first := range entries {
		data[name] = bytes.Repeat([]byte{first}, keyed.Length)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "holdfast", Name: "members"}, Data: data}
	api.put("/api/v1/secrets", "holdfast/members", secret)
}

// keysVersions returns the version that the SpeakerState of w1 reports, and the version of the Secret.
func keysVersions(api *apiServer) (reported, present string) {
	var state v1beta1.SpeakerState
	var secret corev1.Secret
	api.get(statesPath, "w1", &state)
	api.get("/api/v1/secrets", "holdfast/members", &secret)
	return state.Status.KeysVersion, secret.ResourceVersion
}

// TestKeysAwaited: the error says what a speaker waits for, and its SpeakerState what it has read meanwhile. Once it
// has a key it keeps it, whatever becomes of the Secret.
func TestKeysAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer(t)
		w := newTestLoop(noLinks)
		w.atCluster(t, api.config())
		m := newMemberKeys(w)
		key := func(first byte) []byte { return bytes.Repeat([]byte{first}, keyed.Length) }
		for _, step := range []struct {
			name  string
			away  string
			holds map[string]byte
			want  [][]byte
			err   string
			// reports reports whether the SpeakerState has the version of the Secret.
			reports bool
		}{
			{name: "no API server", away: fails, err: "read speakerstate w1"},
			{name: "no Secret", err: "does not exist", reports: true},
			{name: "no wanted key", holds: map[string]byte{"other": 9}, err: "no key of 32 bytes", reports: true},
			{name: "a key that is not in use", holds: map[string]byte{keyed.Key: 1}, err: "no entry in-use", reports: true},
			{
				name:    "only a former key",
				holds:   map[string]byte{keyed.Former: 1, keyed.Key: 1},
				err:     "no entry in-use",
				reports: true,
			},
			{
				name:  "a key in use",
				holds: map[string]byte{keyed.Key: 1, keyed.InUse: 1, keyed.Former: 1},
				want:  [][]byte{key(1)},
			},
			{name: "another key", holds: map[string]byte{keyed.Key: 2}, want: [][]byte{key(1), key(2)}},
			{name: "no API server", away: fails, err: "get secret members"},
			{name: "the Secret is gone", want: [][]byte{key(1), key(2)}},
		} {
			api.put("/api/v1/secrets", "holdfast/members", nil)
			if step.holds != nil {
				putKeys(api, step.holds)
			}
			api.set(step.away)
			read, err := m.await(t.Context())
			// The keys of other entries have no order that matters.
			slices.SortFunc(read.keys, bytes.Compare)
			if diff := cmp.Diff(step.want, read.keys); diff != "" {
				t.Errorf("%s: keys (-want +got):\n%s", step.name, diff)
			}
			if (err != nil) != (step.err != "") || err != nil && !strings.Contains(err.Error(), step.err) {
				t.Errorf("%s: error %v, want %q", step.name, err, step.err)
			}
			reported, present := keysVersions(api)
			isChecked := step.away == here && present != ""
			if isChecked && (reported == present) != step.reports {
				t.Errorf("%s: the SpeakerState reports version %q of %q", step.name, reported, present)
			}
		}
		api.set(refuses)                       // and no connection is left
		background(t, w.sources.Cluster.Run)() // ends what New began
	})
}

// TestStateBeforeKeys: a speaker that finds a key in use at once has a SpeakerState before it reads the key.
//
// Trap: the controller waits for the speakers that have one, and would put a key in use that this speaker has not read.
func TestStateBeforeKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer(t)
		w := newTestLoop(noLinks)
		w.atCluster(t, api.config())
		putKeys(api, map[string]byte{keyed.Key: 1, keyed.InUse: 1, keyed.Former: 1})
		_, err := newMemberKeys(w).await(t.Context())
		must(t, err)
		var state v1beta1.SpeakerState
		if !api.get(statesPath, "w1", &state) || state.Status.KeysVersion != "" {
			t.Errorf("the SpeakerState is %+v", state)
		}
		api.set(refuses)                       // and no connection is left
		background(t, w.sources.Cluster.Run)() // ends what New began
	})
}

// TestKeysFollowed: keys that change are set within seconds, with their version, and a speaker asks for nothing until
// they do.
func TestKeysFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer(t)
		w := newTestLoop(noLinks)
		w.atCluster(t, api.config())
		putKeys(api, map[string]byte{keyed.Key: 1, keyed.InUse: 1, keyed.Former: 1})
		m := newMemberKeys(w)
		first, err := m.await(t.Context())
		must(t, err)
		var set keySet
		stop := background(t, func(ctx context.Context) error {
			m.follow(ctx, first, func(read keySet) error { set = read; return nil })
			return nil
		})
		synctest.Wait()
		api.mu.Lock()
		before := api.asked
		api.mu.Unlock()
		time.Sleep(time.Hour)
		if api.mu.Lock(); api.asked != before || set.keys != nil {
			t.Errorf("%d requests in an hour in which nothing changed, %d keys set", api.asked-before, len(set.keys))
		}
		api.mu.Unlock()
		for _, away := range []string{"", fails} {
			api.set(away)
			time.Sleep(time.Minute)
			api.set("")
			key := byte(len(away) + 2)
			putKeys(api, map[string]byte{keyed.Key: key, keyed.InUse: key})
			time.Sleep(time.Minute)
			_, version := keysVersions(api)
			if len(set.keys) == 0 || set.keys[0][0] != key || set.version != version {
				t.Errorf("after the API server was away (%q) it has %v of version %s, want key %d of version %s",
					away, set.keys, set.version, key, version)
			}
		}
		stop()
		api.set(refuses)                       // and no connection is left
		background(t, w.sources.Cluster.Run)() // ends what New began
	})
}

// TestAddressChanges: a speaker ends once the address that it is bound to is gone and its node has another one.
//
// Trap: a lease ends, or a network card is replaced, and the speaker goes on with sockets that the kernel sends nothing
// from.
func TestAddressChanges(t *testing.T) {
	old, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.99")
	type change struct {
		after        time.Duration
		onLinks, own []netip.Addr
	}
	none := []netip.Addr{}
	for _, tt := range []struct {
		name    string
		changes []change
		// ends is when the speaker ends; 0 for not within an hour.
		ends time.Duration
	}{
		{"another one is there at once", []change{{time.Minute, []netip.Addr{other}, []netip.Addr{other}}}, 70 * time.Second},
		{"the kubelet reports it late", []change{{time.Minute, []netip.Addr{other}, none},
			{5 * time.Minute, []netip.Addr{other}, []netip.Addr{other}}}, 6 * time.Minute},
		{
			"it goes and comes back",
			[]change{
				{time.Minute, []netip.Addr{other}, []netip.Addr{other}},
				{8 * time.Second, []netip.Addr{old, other}, []netip.Addr{other}},
				{time.Minute, []netip.Addr{other}, []netip.Addr{other}},
				{8 * time.Second, []netip.Addr{old}, []netip.Addr{old}},
			},
			0,
		},
		{
			"the status lists another one first",
			[]change{{time.Minute, []netip.Addr{old, other}, []netip.Addr{other, old}}}, 0,
		},
		{"the node has no address", []change{{time.Minute, none, none}}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				addresses := func() (onLinks, own []netip.Addr) {
					onLinks, own = []netip.Addr{old}, []netip.Addr{old}
					at := start
					for _, c := range tt.changes {
						if at = at.Add(c.after); time.Now().After(at) {
							onLinks, own = c.onLinks, c.own
						}
					}
					return onLinks, own
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				err := watchAddress(ctx, "w1", old, func() []netip.Addr { onLinks, _ := addresses(); return onLinks },
					func() []netip.Addr { _, own := addresses(); return own })
				if tt.ends == 0 {
					if err != nil {
						t.Error(err)
					}
					return
				}
				ended := time.Since(start)
				want := "the address of node w1 changed from 192.0.2.1 to 192.0.2.99, to which only a new process binds"
				if err == nil || err.Error() != want || ended < tt.ends || ended > tt.ends+2*time.Second {
					t.Errorf("after %v: %v", ended, err)
				}
			})
		})
	}
}
