package members

import (
	"bytes"
	"log/slog"
	"net/netip"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
)

// Of many keys none is left that is not among the new ones: it would still open doors.
func TestKeysReplaced(t *testing.T) {
	keys := func(firsts ...byte) (all [][]byte) {
		for _, first := range firsts {
			all = append(all, bytes.Repeat([]byte{first}, 32))
		}
		return all
	}
	m, err := New(Config{Config: heartbeat.Config{
		Log: slog.New(slog.DiscardHandler), NodeName: "a", Address: netip.MustParseAddr("127.0.0.1"), Keys: keys(1, 2, 3, 4),
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range [][][]byte{keys(1, 4), keys(5, 6, 7), keys(7)} {
		if err := m.SetKeys(want); err != nil {
			t.Fatal(err)
		}
		if got := m.keys.GetKeys(); !bytes.Equal(bytes.Join(got, nil), bytes.Join(want, nil)) {
			t.Errorf("keys are %v, want %v", got, want)
		}
	}
}
