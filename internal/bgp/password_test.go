package bgp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// book is a log to be read while it is written.
type book struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (b *book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.out.Write(p)
}

// A password is in no log of any level, in no error and in no state.
func TestPasswordIsNotShown(t *testing.T) {
	const password = "Geheim-7"
	r := newRouter(t, "127.0.0.1", 65001)
	var log book
	s := New(Config{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), Command: testCommand})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	p := r.peer("signed", 65000)
	p.Password = password
	d := desire([]lb.Peer{p}, route("198.51.100.1/32", "signed"))
	s.Set(d)
	nstest.Until(t, patience, "the session does not come up", func() bool { return strings.Contains(session(s, "signed").LastError, "signature") })
	states, err := json.Marshal(struct {
		Desired  Desired
		Sessions []lb.Session
	}{d, s.Sessions()})
	if err != nil {
		t.Fatal(err)
	}
	one := settingsOf(p, d.RouterID)
	settings := fmt.Sprintf("%v %+v %#v", one, one, one)
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if text := string(states) + settings + log.out.String(); strings.Contains(text, password) || log.out.Len() == 0 {
		t.Errorf("the password is in\n%s", text)
	}
}
