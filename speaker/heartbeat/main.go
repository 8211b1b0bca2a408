// Command heartbeat sends the heartbeats of the speaker that starts it, in a process that is small enough to have
// real-time priority as a whole.
package main

import (
	"fmt"
	"os"

	"github.com/holdfast-lb/holdfast/internal/heartbeat"
)

func main() {
	if err := heartbeat.Serve(); err != nil {
		fmt.Fprintln(os.Stderr, "heartbeat:", err)
		os.Exit(1)
	}
}
