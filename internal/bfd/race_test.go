//go:build race

package bfd

const raceDetector = true
