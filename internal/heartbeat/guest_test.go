package heartbeat

import (
	"encoding/json"
	"slices"
	"testing"
	"testing/synctest"
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
