//go:build race

package filter

// raceEnabled: everything takes several times as long.
const raceEnabled = true
