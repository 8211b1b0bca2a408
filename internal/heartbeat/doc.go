// Package heartbeat tells within a fraction of a second which speakers are
// alive. Membership (who exists) is not its business: it is told the peers, and
// what gossip thinks of each.
//
// Every node sends a beat each Interval to a few others, its watchers: the next
// Watchers living nodes on a ring of hashed names, so that the load of a node is
// the same at any size of the cluster, and everybody in a small one. A watcher
// that misses beats for as long as the sender said it may
//
//	asks the sender's other watchers, asks the sender itself, and has gossip ask it;
//	clears the sender if any of them has heard it;
//	else declares it dead, to everybody at once.
//
// One watcher's word is enough where there is no other to ask. Claims (alive,
// held down, mute, dead, left) are ordered by an incarnation number that only
// their subject raises: who hears of its own death refutes it under the next
// number, as in SWIM. Claims also ride on every packet for a while, which mends
// what the shout to everybody lost.
//
// What could be mistaken for a death:
//
//   - A watcher that was itself not running: it waits a full time-out more.
//   - A watcher that hears nobody: it keeps what it thinks to itself.
//   - A blocked port: an answer by gossip counts as heard.
//   - A speaker that was killed: its node's kernel refuses the packet. It is mute,
//     for MuteTime at most, and moves nothing.
//
// A node that was declared dead and is back is held down for a while, longer each
// time; it says so itself, so that all agree when that ends.
//
// What half of the cluster takes with it is not given up in one instant. So a View
// says of whom else nothing is heard when somebody was given up (Silent), and whether
// this node hears anybody at all (Deaf): who decides by that must not count on them.
//
// The Lease is the other direction: it says whether this node may still act on
// what it was told. It lapses when this node has not sent beats for so long that
// others may have declared it dead, and is confirmed again by a plan made after.
//
// Packets are authenticated by a key that all speakers share, accepted only from
// a peer's address, and only from a run of the peer that has answered a challenge
// of ours, in rising order: a recorded packet is worth nothing. A socket filter
// drops what does not begin with a word that depends on the key.
//
// The detector is a state machine without clock, sockets or goroutines. It runs
// on one locked thread with SCHED_RR and a socket of its own that the
// runtime's poller does not know: ordinary threads are delayed for 300 ms on a busy
// node. Time is CLOCK_BOOTTIME, which counts suspension and which nobody sets.
//
// That thread is in a process of its own (Config.Command, Serve), all of which has
// SCHED_RR and which has little else to do. In the speaker's it would wait for ordinary threads, 635 ms
// were seen on a busy node: a garbage collection stops it until each of them has run to a safe point, and
// after a system call it needs one of GOMAXPROCS, which they keep while they wait for a core. The
// two processes share the Lease and the counters as memory, and tell each other the rest through a
// socket. When the speaker's ends so does the other. Where the speaker's does not run
// for MuteTime, it does not serve: beats end, too. When that of the beats ends, or sends none, the
// speaker starts it again.
//
// Real-time priority has a budget, so that no fault or flood starves the node: the kernel asks for it
// back from a thread that does not sleep, and then kills the process; who sleeps often and takes much all the same gives it
// back itself, and has it again when that is over. Packets that are read between two beats are
// counted, those that no peer sends are dropped by a socket filter, and no memory is allocated for any.
//
// The package decides nothing about addresses.
package heartbeat
