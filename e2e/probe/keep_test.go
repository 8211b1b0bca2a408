package probe

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// keeper is a server that records its connections.
type keeper struct {
	mu    sync.Mutex
	conns []net.Conn
	// mute are the connections without a second answer, asked counts requests.
	mute  map[string]bool
	asked map[string]int
}

// ServeHTTP implements http.Handler.
func (k *keeper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	k.asked[r.RemoteAddr]++
	mute := k.mute[r.RemoteAddr]
	k.mu.Unlock()
	if mute {
		<-r.Context().Done()
		return
	}
	fmt.Fprintln(w, `{"pod":"p"}`)
}

// TestKeep: a connection counts as answered only if it is answered at the end, not if it is
// closed, reset or silent.
func TestKeep(t *testing.T) {
	const connections, closed, reset, mute = 50, 7, 5, 3
	k := &keeper{mute: map[string]bool{}, asked: map[string]int{}}
	s := httptest.NewUnstartedServer(k)
	s.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if state == http.StateNew {
			k.mu.Lock()
			k.conns = append(k.conns, c)
			k.mu.Unlock()
		}
	}
	s.Start()
	defer s.Close()
	ctx, happened := context.WithCancel(t.Context())
	defer happened()
	got, err := Keep(ctx, Config{Target: s.Listener.Addr().String(), Timeout: time.Second}, connections, func(kept Kept) {
		if diff := cmp.Diff(Kept{Opened: connections}, kept); diff != "" {
			t.Errorf("opened: -want +got\n%s", diff)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if len(k.conns) != connections || len(k.asked) != connections {
			t.Errorf("%d connections are open, %d have asked", len(k.conns), len(k.asked))
		}
		for i, c := range k.conns[:closed+reset+mute] {
			switch {
			case i < closed:
				c.Close()
			case i < closed+reset:
				if err := c.(*net.TCPConn).SetLinger(0); err != nil {
					t.Error(err)
				}
				c.Close()
			default:
				k.mute[c.RemoteAddr().String()] = true
			}
		}
		happened()
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.Opened != connections || got.Answered != connections-closed-reset-mute {
		t.Errorf("got %+v, want %d answers", got, connections-closed-reset-mute)
	}
	sum := 0
	for _, n := range got.Errors {
		sum += n
	}
	if sum != closed+reset+mute || got.Errors["read: i/o timeout"] != mute {
		t.Errorf("errors are %v", got.Errors)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for who, n := range k.asked {
		if n > 2 {
			t.Errorf("%s asked %d times", who, n)
		}
	}
}

// TestKeepNoListener: without a listener Keep returns an error.
func TestKeepNoListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	target := l.Addr().String()
	l.Close()
	if _, err := Keep(t.Context(), Config{Target: target, Timeout: time.Second}, 3, func(Kept) {
		t.Error("Keep reports open connections")
	}); err == nil {
		t.Error("no error")
	}
}
