// Package lb is the vocabulary of Holdfast: plain values that all other packages share. It imports the
// standard library only, does no I/O and decides nothing.
package lb
