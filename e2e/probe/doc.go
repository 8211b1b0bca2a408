// Package probe asks the echo application for an answer, once or at a steady pace, and reports the outages. It is
// open-loop: a probe never waits for the one before it, so a stalled network cannot slow the measurement down and hide
// its own outage. Nor does a busy machine look like one: a lost SYN fails a probe even if the next one gets through,
// and a late answer fails it only if the probe was running in the meantime. It uses addresses only, and does not depend
// on Kubernetes.
package probe
