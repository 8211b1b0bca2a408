package heartbeat

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"testing"
)

// That the process ended comes after all that its guest reported.
func TestGuestGone(t *testing.T) {
	var last []byte
	h, err := New(Config{
		Log: slog.New(slog.DiscardHandler), NodeName: "node", Keys: [][]byte{make([]byte, 32)},
		Command: []string{"sh", "-c", `printf 'last words' >&5`},
		Guest:   func(conn net.Conn) { last, _ = io.ReadAll(conn) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.runProcess(t.Context(), 0); !errors.Is(err, errEnded) {
		t.Fatal(err)
	}
	if string(last) != "last words" {
		t.Errorf("the guest's last words were %q", last)
	}
}
