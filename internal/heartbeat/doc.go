// Package heartbeat tells within a fraction of a second which speakers are alive. Who exists is not its business:
// the membership sets the peers. Gossip's opinion counts only for peers whose heartbeats never came, and for those
// that nobody is left to watch.
//
// Who watches whom, and rules 1 to 8, are in docs/design.md. What they leave out:
//
//   - Two complaints, or a claim of Dead from a node that has not heard the refutation yet, extend a hold-down.
//   - A watcher that did not run itself waits for a full time-out more.
//   - A side of a partition falls out together: for its nodes the hold-down does not double.
//
// A broadcast carries a verdict to all nodes at once. Every packet also carries fresh claims for a while, which
// repairs a lost broadcast. Anti-entropy repeats old claims by turns.
//
// Packets are authenticated by a key that all speakers share. They are accepted only from a peer's address, only from
// a run of the peer that has answered a challenge of this node, and in rising order: a recorded packet is worth
// nothing. A socket filter drops what does not begin with a prefix that depends on the key.
//
// The detector is a state machine without clock, sockets or goroutines. It runs on one goroutine of a process whose
// threads all have SCHED_RR: ordinary threads are delayed for 300 ms on a busy node. Heartbeats that say nothing new
// wait in the kernel, which dates them, until it sends its own, unless their sender is suspected: a thread costs more
// to wake than to run. One system call takes them, and one sends. All else wakes it at once. Time is CLOCK_BOOTTIME,
// which counts suspension and which nobody sets.
//
// That process does little else (Config.Command, Serve). In the speaker's, one thread with priority would wait for
// ordinary ones, up to 635 ms on a busy node: a garbage collection stops it until each of them has run to a safe point,
// and after a system call it needs one of GOMAXPROCS, which they keep while they wait for a core. The two processes
// share the Lease and the counters as memory, and exchange the rest over a socket. The heartbeat process ends with the
// speaker's. If the speaker's process does not run for speakerDownTime, it does not serve, and heartbeats stop too. If
// the heartbeat process ends, or sends no heartbeats, the speaker starts it again.
//
// Real-time priority has a budget, so that no fault or flood starves the node. The packets read between two heartbeats
// are limited, a socket filter drops those without the prefix, and no packet needs memory to be allocated.
//
// The package decides nothing about addresses.
package heartbeat
