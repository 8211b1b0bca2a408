// Package probe asks the echo application for an answer, once or at a steady
// pace, and says how long there was none. It is open-loop: a probe never waits
// for the one before it, so a stalled network cannot slow the measurement down
// and hide its own outage. It knows addresses only, nothing of Kubernetes.
package probe
