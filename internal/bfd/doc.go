// Package bfd detects within a fraction of a second that a router is unreachable, and lets the router detect the same
// of this node, by Bidirectional Forwarding Detection (RFC 5880). It implements the asynchronous mode, over one hop
// (RFC 5881) or several (RFC 5883).
//
//	m := bfd.New(bfd.Config{Log: log, Changed: kick}) // in the speaker
//	m.Set(peers)
//	m.Serve(conn)                                     // to the process of the heartbeats
//	statuses := m.Statuses()
//
//	bfd.Serve(conn, hangs)                            // in the process of the heartbeats
//
// The state machine of a session and the table of all sessions are pure: time and packets are arguments. A thread
// drives the table with a real clock and real sockets. It runs in the process of the heartbeats, as its Guest, because
// an ordinary thread is delayed for 300 ms on a busy node. A Monitor is the speaker's side: it sends the desired
// sessions, and receives the reports of the process.
//
// The speaker may rely on this:
//
//   - A session that is no longer desired is switched off in good order, and so are all sessions when the speaker ends.
//   - The process ends with the speaker, so the control-plane-independent bit is never set: a router with graceful
//     restart must not take the end of such a session for a failure of the path (RFC 5882 section 4.3).
//   - A session that cannot run has the reason in Status.Error. The others run.
//
// Input is hostile. A neighbor is identified by the source address of its packets, by the link on which they arrive,
// and by their TTL: 255 over one hop (RFC 5881 section 5), a minimum across routers. The kernel passes matching packets
// to the session's own socket and drops all others. So no other machine can send in a neighbor's name, or exhaust the
// buffer of another neighbor. Discriminators are random. The reads of a socket in a time are limited, no read or send
// allocates memory, and all sessions of a node together have a limited rate.
//
// Authentication, Echo packets and demand mode of this node are not implemented. A neighbor in demand mode is served
// (RFC 5880 section 6.6). A neighbor that authenticates is refused. No neighbor may send Echo packets: Required Min
// Echo RX is 0.
package bfd
