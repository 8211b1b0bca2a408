// Package chaos plans random faults of a cluster, and decides from a record alone whether its addresses had owners as
// promised meanwhile.
//
// It imports nothing of the product and knows nothing of it. A Schedule says which fault begins when; a seed repeats
// it. A Record says what was seen from outside: when each fault began and ended, which MAC answered for which address,
// which node served a client, and which addresses each Service had. Check compares them with these rules:
//
//   - Two nodes that hear each other do not both answer for an address for more than 2 s.
//   - No address is without an answer for more than 3 s while there is a node whose networks work; 500 ms if its owner
//     lost its power or its cable, and nothing else was broken.
//   - 40 s after the last fault each address has one owner, and is served.
//   - No address of a Service ever changes.
//
// Two nodes hear each other while there is a link on which neither has a fault, whatever happens on other links. A
// node's networks work unless a fault of the node is in force, or ended less than 5 s ago. While a listener does not
// hear a machine that always answers, it is deaf, and that time does not count.
//
// A record that lacks something is a violation too: a recorder that sees nothing must not pass.
//
// What a test does, which plays the faults and listens:
//
//	s := chaos.NewSchedule(seed, time.Hour, []string{"w1", "w2", "w3"}, []string{"eth0", "eth1"})
//	var r chaos.Record
//	r = append(r, chaos.Entry{At: at, What: chaos.Answer, By: "client", Address: address, MAC: mac})
//	for _, v := range chaos.Check(s, r) {
//		t.Error(v)
//	}
package chaos
