// Package heartbeat tells within a fraction of a second which speakers are
// alive. Membership (who exists) is not its business: it is told the peers. What gossip thinks of each
// counts only for peers whose beats never came, and for those that nobody is left to watch.
//
// Every node sends a beat each Interval to a few others, its watchers: the next
// Watchers living nodes on a ring of hashed names, so that the load of a node is
// the same at any size of the cluster, and everybody in a small one. A watcher
// that misses beats for as long as the sender said it may suspects the sender, asks it and
// its other watchers, and has the wire asked whether it still answers for what it announces. The rules:
//
//   - A suspicion is private until another node that hears well shares it. Then the suspect is dead, and
//     everybody is told at once. Whoever heard it, or whom the wire tells that it answers, clears it.
//   - Beats are counted, so that each node knows what share of them it receives. A node that hears one
//     other well hears well, and what it does not hear is not there. Who does not accuses nobody.
//   - A node that hears nobody well, and less than a quarter of all beats, is at fault itself, unless
//     the wire shows that its link works: it steps back by its own word (Held, flag deaf).
//   - A node that hears no other speaker that hears well decides by the wire: it takes the others for
//     dead when they do not answer and a foreign machine does; when foreign machines fell
//     silent too it takes nothing; where there never were any it waits for two seconds. It keeps
//     such a verdict to itself.
//   - A beat says when its sender hears the receiver badly, and others well. Two such words, or Dead from who did
//     not hear the refutation yet, keep a node held that is; two that hear less than a quarter have it
//     step back: one-way loss is known at both ends.
//
// Claims (alive, held down, mute, dead, left) are ordered by an incarnation number that only
// their subject raises: a node that hears of its own death refutes it under the next
// number, as in SWIM (https://www.cs.cornell.edu/projects/Quicksilver/public_pdfs/SWIM.pdf); that
// a node doubts itself first is Lifeguard's (https://arxiv.org/abs/1707.00788). Claims also
// ride on every packet for a while, which mends what the message to everybody lost.
//
// What else could be mistaken for a death:
//
//   - A watcher that was itself not running: it waits a full time-out more.
//   - A speaker that was killed: its node's kernel refuses the packet. It is mute,
//     for MuteTime at most, and moves nothing.
//
// A node that was dead, or stepped back, and is well again is held down for HoldDown: it ranks behind the
// others. That grows where its speaker was started again and again, each time after a death.
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
