// Package detect decides which nodes are alive, by the packets that their speakers exchange on one link or between
// their addresses.
//
// A Detector is the protocol of one node as a state machine: heartbeats, suspicions, verdicts and hold-downs, which
// are rules 1 to 8 in docs/design.md. It has no clock, socket, goroutine or log, so that a test runs hundreds of them
// on a simulated network. A process around it (package heartbeat) reads the clock and moves the packets:
//
//	d := detect.New(detect.Config{NodeName: "a", Epoch: 1, Random: random}, clock())
//	d.SetPeers(clock(), []detect.Peer{{Name: "b"}})
//	for {
//		for _, packet := range arrived() {
//			d.Receive(clock(), packet)
//		}
//		d.Tick(clock())
//		for _, packet := range d.TakePackets() {
//			send(packet)
//		}
//		for _, question := range d.TakeQuestions() {
//			ask(question)
//		}
//		publish(d.View(clock()))
//		sleepUntil(d.Due())
//	}
//
// These go in:
//
//   - SetPeers: the nodes that exist. A Detector discovers none.
//   - Receive: a packet that is authentic and came from its sender's address. ReceiveFrame: the same as a frame.
//   - ReceiveRefusal: a kernel refused a packet, because no speaker listens on its node.
//   - ReceiveAnswer: the answer to a question for the wire.
//   - Tick: time alone. Leave: the end of the speaker.
//
// These come out, after each of them:
//
//   - TakePackets: the packets to send, each to the node Packet.To, as a frame too where AsFrame says so.
//   - TakeQuestions: the silent nodes to ask on the wire, by echo, ARP or NDP: whether they and other machines answer.
//   - Due: the time of the next Tick.
//   - View: the status of every node, and the state of this node's own link.
//   - LinkState: whether this node's own end of a link works, where another Detector judges another path.
//
// Each link has a Detector of its own. SetLinks connects them.
//
// Every time is a duration since one moment, which nothing sets and which counts suspension (CLOCK_BOOTTIME). It must
// be later than 0, because 0 means never.
//
// The rules in docs/design.md leave out:
//
//   - Two complaints, or a claim of Dead from a node that has not heard the refutation yet, extend a hold-down.
//   - A watcher that did not run itself waits for a full time-out more.
//   - All nodes on one side of a partition are lost together: their hold-downs do not double.
//
// A broadcast carries a verdict to all nodes at once. Every packet also carries fresh claims for a while, which
// repairs a lost broadcast. Anti-entropy repeats old claims in turn.
//
// A packet is accepted only from a run of its sender that answered a challenge of this node, and in rising order: a
// recorded packet proves nothing.
//
// A Detector is not safe for concurrent use. While there is no claim to repeat, heartbeats allocate no memory.
//
// The package must not decide anything about addresses.
package detect
