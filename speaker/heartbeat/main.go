// Command heartbeat sends what may not be late, heartbeats and BFD packets, for the speaker that starts it, in a
// process that is small enough to have real-time priority as a whole.
package main

import (
	"fmt"
	"os"

	"github.com/holdfast-lb/holdfast/internal/bfd"
	"github.com/holdfast-lb/holdfast/internal/heartbeat"
)

func main() {
	if err := heartbeat.Serve(bfd.Serve); err != nil {
		fmt.Fprintln(os.Stderr, "heartbeat:", err)
		os.Exit(1)
	}
}
