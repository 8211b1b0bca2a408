package detect

import "testing"

// TestHeartbeatsAllocateNothing: nodes that have nothing to tell each other allocate no memory, whether they send or
// receive.
func TestHeartbeatsAllocateNothing(t *testing.T) {
	clock, number := ms, uint64(0)
	random := func() uint64 { number++; return number }
	nodes := map[NodeID]*Detector{}
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		d := New(Config{NodeName: name, Realtime: true, Epoch: 1, Random: random}, clock)
		var peers []Peer
		for _, peer := range names {
			peers = append(peers, Peer{Name: peer, Gossip: true})
		}
		d.SetPeers(clock, peers)
		nodes[d.self] = d
	}

	received := 0
	interval := func() {
		clock += nodes[NodeIDOf("a")].timers.Interval
		for _, d := range nodes {
			d.Tick(clock)
		}
		for _, d := range nodes {
			for _, p := range d.TakePackets() {
				received++
				nodes[p.To].Receive(clock, p)
			}
			d.TakeQuestions()
		}
	}
	for range 100 {
		interval()
	}
	received = 0
	allocations := testing.AllocsPerRun(1000, interval)
	if allocations != 0 || received < 1000*4*3 {
		t.Errorf("an interval of %d nodes allocates %v times; %d packets were received", len(names), allocations, received)
	}
}
