// Package liveness finds out which speakers live where heartbeats alone cannot tell.
package liveness
