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
)

const members = "holdfast-members"

// keysTest is a controller that syncs the members' Secret on demand.
type keysTest struct {
	*testing.T
	server *apiServer
	keys   *memberKeys
}

func newKeysTest(t *testing.T, speakers ...string) *keysTest {
	server := newServer(t)
	for _, node := range speakers {
		server.put(t, &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{Name: node}})
	}
	s := newTestSyncer(t, server)
	must(t, s.cluster.WaitForSpeakerStates(t.Context()))
	return &keysTest{t, server, newMemberKeys(s.cluster, members, s.log)}
}

func (k *keysTest) look() map[string][]byte {
	k.Helper()
	must(k, k.keys.sync(k.Context()))
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

// The first key is in use at once. If the Secret is then deleted or replaced, the key in use stays.
func TestMembersSecretKept(t *testing.T) {
	k := newKeysTest(t)
	first := k.look()
	if inUse := first[keyed.InUse]; len(first) != 2 || len(inUse) != keyed.Length || !bytes.Equal(inUse, first[keyed.Key]) {
		t.Fatalf("the first key: %v", first)
	}
	if diff := cmp.Diff(first, k.look()); diff != "" {
		t.Errorf("nothing happened (-before +after):\n%s", diff)
	}
	k.write(nil)
	second := k.look()
	if !bytes.Equal(second[keyed.InUse], first[keyed.InUse]) || len(second[keyed.Key]) != keyed.Length ||
		bytes.Equal(second[keyed.Key], first[keyed.Key]) {
		t.Errorf("the Secret was deleted: before %v, after %v", first, second)
	}
	third := map[string][]byte{keyed.Key: newKey(), "other": newKey()}
	k.write(maps.Clone(third))
	third[keyed.InUse] = first[keyed.InUse]
	if diff := cmp.Diff(third, k.look()); diff != "" {
		t.Errorf("the Secret was replaced (-want +got):\n%s", diff)
	}
}

// A new leader knows no key, and running speakers do not know a key that it creates, whether they are ready or not.
func TestMembersSecretLost(t *testing.T) {
	k := newKeysTest(t, "w1")
	first := k.look()
	if len(first) != 1 || len(first[keyed.Key]) != keyed.Length {
		t.Errorf("with speakers that run, the Secret holds %v, want no more than a key", first)
	}
	if diff := cmp.Diff(first, k.look()); diff != "" {
		t.Errorf("nothing happened (-before +after):\n%s", diff)
	}
}

// An invalid key is left alone, and reported once.
func TestMembersSecretInvalid(t *testing.T) {
	k := newKeysTest(t, "w1")
	inUse := newKey()
	want := map[string][]byte{keyed.Key: []byte("secret"), keyed.InUse: inUse}
	k.write(maps.Clone(want))
	for range 2 {
		if diff := cmp.Diff(want, k.look()); diff != "" {
			t.Errorf("the Secret (-want +got):\n%s", diff)
		}
	}
	e := k.server.event(t)
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Secret", Namespace: own, Name: members, UID: "uid"}
	message := "not used, since a key has 32 bytes: key (6 bytes). " + lb.InvalidKey.Remedy()
	if e.InvolvedObject != about || e.Reason != string(lb.InvalidKey) || e.Message != message || e.Type != corev1.EventTypeWarning {
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
