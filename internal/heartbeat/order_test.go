package heartbeat

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/netip"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/child"
)

// A node that has no peer any more sends the heartbeat process an empty list.
func TestNoPeerIsAnOrder(t *testing.T) {
	ours, theirs := net.Pipe()
	defer ours.Close()
	h, err := New(Config{Log: slog.New(slog.DiscardHandler), NodeName: "a", Keys: [][]byte{testKey}})
	if err != nil {
		t.Fatal(err)
	}
	h.child = &child.Process{Conn: ours}
	go func() {
		h.Set([]Peer{{Name: "b", Address: netip.MustParseAddr("2001:db8::2")}})
		h.Set(nil)
	}()
	in := json.NewDecoder(theirs)
	for _, want := range []int{1, 0} {
		var o order
		if err := in.Decode(&o); err != nil {
			t.Fatal(err)
		}
		if o.Peers == nil || len(o.Peers) != want {
			t.Errorf("the order is %+v, want %d peers", o, want)
		}
	}
}
