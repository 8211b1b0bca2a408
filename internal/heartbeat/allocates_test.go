package heartbeat

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// newTestThread returns a thread that the test drives.
func newTestThread(t *testing.T, c processSettings, peers []Peer) *thread {
	t.Helper()
	c.Timers = c.withDefaults()
	th, err := newThread(c, &shared{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(th.socket.close)
	if err := th.obey(order{Peers: peers, Keys: [][]byte{testKey}}); err != nil {
		t.Fatal(err)
	}
	return th
}

// steady is a thread that the test drives, with n peers in its own process that do not answer it but
// have their packets read by it.
func steady(t *testing.T, n int) (step func()) {
	t.Helper()
	var peers []Peer
	for i := range n {
		peers = append(peers, Peer{Name: fmt.Sprintf("node%d", i), Address: netip.MustParseAddr(fmt.Sprintf("127.0.0.%d", i+1)), Gossip: true})
	}
	var threads []*thread
	for _, p := range peers {
		threads = append(threads, newTestThread(t, processSettings{
			NodeName: p.Name, Address: p.Address, Port: testPort, Timers: Timers{Interval: time.Microsecond, Multiplier: 1000},
		}, peers))
	}
	step = func() {
		for _, th := range threads {
			th.step()
			th.account()
			th.socket.wait(0, true, true, true)
		}
	}
	for range 1000 {
		step()
	}
	return step
}

// A heartbeat allocates a View and its Members to compare with the last; nothing that is sent or read does. So the
// limit where garbage is collected is hours away in a small cluster.
func TestStepAllocates(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		step := steady(t, 4)
		if n := testing.AllocsPerRun(1000, step); n > 4*2 {
			t.Errorf("a heartbeat of 4 nodes allocates %v times, want 8 at most", n)
		}
	})
}
