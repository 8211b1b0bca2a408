package detect_test

import (
	"fmt"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
)

// Two nodes exchange packets, until one of them loses its power. A foreign machine shows that the link of the other one
// works.
func Example() {
	clock := time.Second
	number := uint64(0)
	random := func() uint64 { number++; return number }
	names, nodes := []string{"a", "b"}, map[detect.NodeID]*detect.Detector{}
	for _, name := range names {
		d := detect.New(detect.Config{NodeName: name, Realtime: true, Epoch: 1, Random: random}, clock)
		d.SetPeers(clock, []detect.Peer{{Name: "a", Gossip: true}, {Name: "b", Gossip: true}})
		nodes[detect.NodeIDOf(name)] = d
	}
	a, b := nodes[detect.NodeIDOf("a")], nodes[detect.NodeIDOf("b")]
	run := func(d time.Duration, running ...*detect.Detector) {
		for end := clock + d; clock < end; clock += time.Millisecond {
			for _, node := range running {
				node.Tick(clock)
				for _, packet := range node.TakePackets() {
					nodes[packet.To].Receive(clock, packet)
				}
				for _, question := range node.TakeQuestions() {
					node.ReceiveAnswer(clock, question, detect.WireAnswer{Node: detect.Unanswered, Foreign: detect.Answered})
				}
			}
		}
		for _, member := range a.View(clock).Members {
			fmt.Println(member.Name, member.Status)
		}
	}
	run(3*time.Second, a, b)
	fmt.Println("b is switched off")
	run(time.Second, a)
	// Output:
	// a alive
	// b alive
	// b is switched off
	// a alive
	// b dead
}
