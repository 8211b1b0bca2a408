// Package bfd tells within a fraction of a second that a router is not reached any more, and tells the router the same
// of this node: Bidirectional Forwarding Detection in asynchronous mode (RFC 5880), over one hop (RFC 5881) or several
// (RFC 5883).
//
// The state machine of a session and the table of all sessions are pure: time and packets are values given to them. A
// thread drives the table by a real clock and real sockets. It runs in the process of the heartbeats, as its Guest, for
// the same reasons: an ordinary thread is delayed for 300 ms on a busy node. A Monitor is the speaker's side. It says
// which sessions are wanted, and takes the process's reports.
//
// What the rest of the speaker may rely on:
//
//   - A session that is not wanted any more, and all of them at the end of the speaker, are switched off in good order.
//   - The process ends with the speaker, so the control-plane-independent bit is never set: a router that knows
//     graceful restart must not take the end of such a session for a failure of the path (RFC 5882 section 4.3).
//   - A session that cannot run says why in Status.Error. The others run.
//
// Input is hostile. A session's neighbor is known by the source address of its packets, the links that they may come
// by, and their TTL: 255 over one hop (RFC 5881 section 5), a minimum across routers. The kernel gives what fits to the
// session's own socket, and drops the rest; so nobody can speak for a neighbor from elsewhere, nor crowd out another
// neighbor. A discriminator is random. What is read of each socket in a time is limited, nothing that is read or sent
// needs memory, and all sessions of a node together have a bounded rate.
//
// Authentication, Echo packets and demand mode of our own are not implemented. A neighbor in demand mode is served
// (RFC 5880 section 6.6), one that authenticates is refused, and none may send Echo packets: Required Min Echo RX is 0.
package bfd
