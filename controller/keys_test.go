package main

import (
	"bytes"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/api/v1beta1"
	"github.com/holdfast-lb/holdfast/internal/keyed"
	"github.com/holdfast-lb/holdfast/internal/lb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const members = "holdfast-members"

// keysTest is a controller that syncs the members' Secret on demand.
type keysTest struct {
	*testing.T
	server *apiServer
	keys   *keyRotation
	clock  time.Time
}

// newKeysTest returns a test with speakers that have read nothing yet.
func newKeysTest(t *testing.T, speakers ...string) *keysTest {
	server := newServer(t)
	k := &keysTest{T: t, server: server, clock: time.Now()}
	for _, node := range speakers {
		k.report(node, "")
		server.put(t, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: "speaker-" + node},
			Spec:       corev1.PodSpec{NodeName: node},
		})
	}
	s := newTestSyncer(t, server)
	must(t, s.cluster.WaitForSpeakerStates(t.Context()))
	k.keys = newKeyRotation(s.cluster, members, s.log)
	return k
}

// report writes a speaker's state.
func (k *keysTest) report(node, version string) {
	k.server.put(k.T, &v1beta1.SpeakerState{
		ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID(node)},
		Status:     v1beta1.SpeakerStateStatus{KeysVersion: version},
	})
}

// reportRead lets speakers report that they have read the Secret as it is.
func (k *keysTest) reportRead(nodes ...string) {
	var secret corev1.Secret
	k.server.get(k.T, secretsPath+"/"+members, &secret)
	for _, node := range nodes {
		k.report(node, secret.ResourceVersion)
	}
}

// look lets the controller look twice, more than a minute apart: the watch of SpeakerStates shows no change here, and
// what it does not show is read after a minute.
func (k *keysTest) look() map[string][]byte {
	k.Helper()
	for range 2 {
		must(k, k.keys.sync(k.Context(), k.clock))
		k.clock = k.clock.Add(reportInterval + time.Second)
	}
	return k.entries()
}

func (k *keysTest) entries() map[string][]byte {
	var secret corev1.Secret
	k.server.get(k.T, secretsPath+"/"+members, &secret)
	return secret.Data
}

// write changes the Secret like its owner; nil deletes it.
func (k *keysTest) write(data map[string][]byte) {
	if data == nil {
		k.server.edit(func() { delete(k.server.objects, secretsPath+"/"+members) })
		return
	}
	k.server.put(k.T, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: own, Name: members, UID: "uid"}, Data: data})
}

// TestFirstMembersKey: the first key is in use at once.
func TestFirstMembersKey(t *testing.T) {
	k := newKeysTest(t)
	must(t, k.keys.sync(t.Context(), k.clock))
	first := k.entries()
	key := first[keyed.Key]
	want := map[string][]byte{keyed.Key: key, keyed.InUse: key, keyed.Former: key}
	if diff := cmp.Diff(want, first); diff != "" || len(key) != keyed.Length {
		t.Fatalf("the first key, of %d bytes (-want +got):\n%s", len(key), diff)
	}
	if diff := cmp.Diff(first, k.look()); diff != "" {
		t.Errorf("nothing happened (-before +after):\n%s", diff)
	}
}

// TestMembersSecretKept: if the Secret is deleted or replaced, the key in use is restored.
func TestMembersSecretKept(t *testing.T) {
	k := newKeysTest(t, "w1")
	key := newKey()
	k.write(map[string][]byte{keyed.Key: key, keyed.InUse: key, keyed.Former: key})
	k.look()
	k.write(nil)
	second := k.look()
	if !bytes.Equal(second[keyed.InUse], key) || !bytes.Equal(second[keyed.Former], key) ||
		len(second[keyed.Key]) != keyed.Length || bytes.Equal(second[keyed.Key], key) {
		t.Errorf("the Secret was deleted: key %v, after %v", key, second)
	}
	third := map[string][]byte{keyed.Key: newKey(), "other": newKey()}
	k.write(maps.Clone(third))
	third[keyed.InUse], third[keyed.Former] = key, key
	if diff := cmp.Diff(third, k.look()); diff != "" {
		t.Errorf("the Secret was replaced (-want +got):\n%s", diff)
	}
}

// TestMembersSecretLost: a new leader knows no key, and running speakers do not know a key that it creates. They change
// to it when all have read it, and only then it is in use.
func TestMembersSecretLost(t *testing.T) {
	k := newKeysTest(t, "w1", "w2")
	first := k.look()
	key := first[keyed.Key]
	want := map[string][]byte{keyed.Key: key}
	if diff := cmp.Diff(want, first); diff != "" || len(key) != keyed.Length {
		t.Fatalf("at first, with a key of %d bytes (-want +got):\n%s", len(key), diff)
	}
	k.reportRead("w1")
	if diff := cmp.Diff(want, k.look()); diff != "" {
		t.Errorf("one speaker knows the key (-want +got):\n%s", diff)
	}
	for _, entry := range []string{keyed.Former, keyed.InUse} {
		k.reportRead("w1", "w2")
		want[entry] = key
		if diff := cmp.Diff(want, k.look()); diff != "" {
			t.Errorf("all speakers have read the Secret (-want +got):\n%s", diff)
		}
	}
}

// TestRotationWaits: an Event names the speakers that have not read a new key. A SpeakerState on a node without a
// speaker delays nothing.
func TestRotationWaits(t *testing.T) {
	k := newKeysTest(t, "w1", "w2", "w3")
	k.report("without-speaker", "")
	old, key := newKey(), newKey()
	before := map[string][]byte{keyed.Key: key, keyed.InUse: old, keyed.Former: old}
	k.write(maps.Clone(before))
	k.reportRead("w1")

	must(t, k.keys.sync(t.Context(), k.clock))
	k.looksAgain("at first", waitInterval)
	select {
	case e := <-k.server.events:
		t.Errorf("an Event at once: %s", e.Message)
	case <-time.After(100 * time.Millisecond):
	}
	if diff := cmp.Diff(before, k.look()); diff != "" {
		t.Errorf("while speakers do not know the key (-want +got):\n%s", diff)
	}
	k.looksAgain("after a report", keysInterval)
	e := k.server.event(t)
	message := "the rotation waits until these nodes' speakers have read the Secret: w2, w3. " + lb.RotationWaits.Remedy()
	if e.Reason != string(lb.RotationWaits) || e.Message != message || e.Type != corev1.EventTypeWarning {
		t.Errorf("Event %s %s: %s", e.Type, e.Reason, e.Message)
	}

	k.reportRead("w1", "w2", "w3")
	after := map[string][]byte{keyed.Key: key, keyed.InUse: key, keyed.Former: old}
	if diff := cmp.Diff(after, k.look()); diff != "" {
		t.Errorf("when all know the key (-want +got):\n%s", diff)
	}
	k.reportRead("w1", "w2", "w3")
	k.look()
	k.looksAgain("in the end", keysInterval)
}

// looksAgain checks when the controller looks again.
func (k *keysTest) looksAgain(when string, want time.Duration) {
	k.Helper()
	if got := k.keys.interval(); got != want {
		k.Errorf("%s, the controller looks again after %v, want %v", when, got, want)
	}
}

// TestNodesBehind: a report of another version, and none, do not count.
func TestNodesBehind(t *testing.T) {
	state := func(node, version string) *v1beta1.SpeakerState {
		return &v1beta1.SpeakerState{
			ObjectMeta: metav1.ObjectMeta{Name: node},
			Status:     v1beta1.SpeakerStateStatus{KeysVersion: version},
		}
	}
	states := []*v1beta1.SpeakerState{state("older", ""), state("read", "7"), state("behind", "6"), state("liar", "x")}
	if diff := cmp.Diff([]string{"older", "behind", "liar"}, nodesBehind(states, "7")); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

// An invalid key is left alone, and reported once.
func TestMembersSecretInvalid(t *testing.T) {
	k := newKeysTest(t, "w1")
	inUse := newKey()
	want := map[string][]byte{keyed.Key: []byte("secret"), keyed.InUse: inUse, keyed.Former: inUse}
	k.write(maps.Clone(want))
	for range 2 {
		if diff := cmp.Diff(want, k.look()); diff != "" {
			t.Errorf("the Secret (-want +got):\n%s", diff)
		}
	}
	e := k.server.event(t)
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: own, Name: members, UID: "uid"}
	message := "not used, since a key has 32 bytes: key (6 bytes). " + lb.InvalidKey.Remedy()
	differs := e.InvolvedObject != about || e.Reason != string(lb.InvalidKey) || e.Message != message ||
		e.Type != corev1.EventTypeWarning
	if differs {
		t.Errorf("Event %s %s of %v: %s", e.Type, e.Reason, e.InvolvedObject, e.Message)
	}
	select {
	case e := <-k.server.events:
		t.Errorf("another Event: %s", e.Message)
	case <-time.After(100 * time.Millisecond):
	}
}

// The controller does not overwrite another client's concurrent write.
func TestMembersSecretOvertaken(t *testing.T) {
	k := newKeysTest(t, "w1")
	read, err := k.keys.cluster.Secret(t.Context(), members)
	must(t, err)
	other := map[string][]byte{keyed.Key: newKey()}
	k.write(other)
	if _, err := k.keys.cluster.WriteSecret(t.Context(), read, map[string][]byte{keyed.Key: newKey()}); err == nil {
		t.Error("a Secret was created over another")
	}
	read, err = k.keys.cluster.Secret(t.Context(), members)
	must(t, err)
	other = map[string][]byte{keyed.Key: newKey()}
	k.write(other)
	if _, err := k.keys.cluster.WriteSecret(t.Context(), read, map[string][]byte{keyed.Key: newKey()}); err == nil {
		t.Error("a Secret was written over another")
	}
	if diff := cmp.Diff(other, k.entries()); diff != "" {
		t.Errorf("the Secret (-want +got):\n%s", diff)
	}
}
