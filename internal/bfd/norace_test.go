//go:build !race

package bfd

const raceDetector = false
