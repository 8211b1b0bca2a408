package heartbeat

import (
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A guest that is busy gets the last of the orders that it missed, and nothing after it was told to leave.
func TestGuestOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := make(chan struct{})
		var got []string
		g := startGuest(func(orders <-chan json.RawMessage, _ func(json.RawMessage), _ func() bool) {
			<-busy
			for o := range orders {
				got = append(got, string(o))
			}
		}, nil, nil)
		g.order(json.RawMessage("1"))
		g.order(json.RawMessage("2"))
		g.order(nil) // an order for the heartbeats alone
		close(busy)
		synctest.Wait()
		g.order(json.RawMessage("3"))
		synctest.Wait()
		g.leave()
		g.leave()
		g.order(json.RawMessage("4"))
		g.wait()
		if want := []string{"2", "3"}; !slices.Equal(got, want) {
			t.Errorf("the guest got %v, want %v", got, want)
		}
	})
}

// A guest that does not leave is not waited for longer than it has to say goodbye, and no guest not at all.
func TestGuestStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stay := make(chan struct{})
		g := startGuest(func(<-chan json.RawMessage, func(json.RawMessage), func() bool) { <-stay }, nil, nil)
		began := boottime()
		g.leave()
		g.wait()
		if boottime()-began > 10*guestTime {
			t.Error("it was waited for")
		}
		close(stay)
		var none *guest
		none.order(json.RawMessage("1"))
		none.leave()
		none.wait()
	})
}

// That the process ended comes after all that its guest reported.
func TestGuestGone(t *testing.T) {
	gone, last := make(chan struct{}), ""
	h, err := New(Config{
		Log: slog.New(slog.DiscardHandler), NodeName: "node", Keys: [][]byte{make([]byte, 32)},
		Command: []string{"sh", "-c", `printf '{"Guest":"last words"}' >&3`},
		Guest: func(n json.RawMessage) {
			if n == nil {
				close(gone)
				return
			}
			select { // a reader that gets no core
			case <-gone:
				t.Error("the process was gone before its guest was heard")
			case <-time.After(100 * time.Millisecond):
			}
			last = string(n)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.runProcess(t.Context(), 0); !errors.Is(err, errEnded) {
		t.Fatal(err)
	}
	if <-gone; last != `"last words"` {
		t.Errorf("the guest's last words were %s", last)
	}
}
