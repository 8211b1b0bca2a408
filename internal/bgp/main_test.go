package bgp

import (
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/bgp/engine"
)

// engineArgument makes the test's program that of an engine, which panics on SIGUSR1 as GoBGP would on a bad message.
const engineArgument = "bgp-engine"

// testCommand is the Command of speakers in tests.
var testCommand = []string{os.Args[0], engineArgument}

func TestMain(m *testing.M) {
	if !slices.Contains(os.Args, engineArgument) {
		os.Exit(m.Run())
	}
	order := make(chan os.Signal, 1)
	signal.Notify(order, syscall.SIGUSR1)
	go func() {
		<-order
		panic("a message of death")
	}()
	if err := engine.Serve(); err != nil {
		fmt.Fprintln(os.Stderr, "bgp:", err)
		os.Exit(1)
	}
}
