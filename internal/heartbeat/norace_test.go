//go:build !race

package heartbeat

const raceDetector = false
