// Command bgp speaks BGP with one router, for the speaker that starts it: a message that crashes it disturbs nothing
// else.
package main

import (
	"fmt"
	"os"

	"github.com/holdfast-lb/holdfast/internal/bgp/engine"
)

func main() {
	if err := engine.Serve(); err != nil {
		fmt.Fprintln(os.Stderr, "bgp:", err)
		os.Exit(1)
	}
}
