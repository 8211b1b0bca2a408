// Package lb is the vocabulary of Holdfast: plain values that every other
// package speaks. It imports the standard library only, reads nothing, writes
// nothing and decides nothing.
package lb
