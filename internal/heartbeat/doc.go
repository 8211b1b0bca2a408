// Package heartbeat runs the detector of package detect in a process with real-time priority, and tells the speaker
// which nodes are alive. It owns sockets, clock, priority, memory and keys; every decision is the detector's.
//
// The speaker constructs a Heartbeat, gives it the other nodes by Set, and reads the View when Config.Changed is
// called:
//
//	h, err := heartbeat.New(heartbeat.Config{NodeName: "a", Address: own, Keys: keys, Command: command, ...})
//	h.Set(peers)
//	go h.Run(ctx)
//	...
//	view := h.View()  // plan by it, carry the plan out, then
//	h.Confirm(view)   // the Lease is valid again
//
// Who exists is decided by the membership. Gossip's opinion counts only for peers whose heartbeats never came, and
// for those that no node is left to watch.
//
// # Two processes
//
// The detector runs on one goroutine of a child process (Config.Command, Serve) whose threads all have SCHED_RR:
// ordinary threads are delayed for 300 ms on a busy node. In the speaker's own process one thread with priority would
// wait for ordinary ones, up to 635 ms on a busy node: a garbage collection stops it until each of them has reached a
// safe point, and after a system call it needs one of GOMAXPROCS, which they keep while they wait for a core.
//
// The two processes share the Lease and the counters as memory, and exchange orders and notices over a socket. The
// child ends with the speaker. If the speaker's process does not run for detect.SpeakerDownTime, it does not serve,
// and heartbeats stop too. If the child ends, or sends no heartbeats, the speaker starts another one.
//
// # Sockets
//
// Packets are authenticated by a key that all speakers share, and accepted only from a peer's address. A socket
// filter drops packets that do not begin with a prefix that depends on the key.
//
// Heartbeats without news wait in the kernel, which dates them, until the thread wakes to send its own: to wake a
// thread costs more than to run it. One system call reads them all, and one sends all. Everything else wakes the
// thread at once, and so do these heartbeats while a node is suspected. The clock is CLOCK_BOOTTIME, which counts
// suspension and which nothing sets.
//
// # Links
//
// SetLinks names the other interfaces on which this node can announce. Each has a detector of its own, with peers that
// hellos find, and packets as sealed frames. Frames wake nothing: the thread reads them when it wakes to send
// heartbeats, and so do a suspect's. The first link has heartbeats as often as the addresses, the others one in 16
// intervals. Refusals count on every link, so that a restart of a speaker is no loss of its links.
//
// The link of the node's own address has no Detector of its own. Only hellos go there, until datagrams of a peer do not
// arrive: then the same packets go as frames too.
//
// # Budget
//
// Real-time priority has a budget, so that no fault or flood starves the node: the packets read between two
// heartbeats are limited, the kernel limits how long a thread runs without a pause, and the process loses its
// priority for a while when it takes more than a quarter of a core. Reading and sending a packet allocates no memory.
//
// The package must not decide anything about addresses, and its thread must not log or wait for another thread.
package heartbeat
