package bgp

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"testing"

	"github.com/holdfast-lb/holdfast/internal/bgp/engine"
)

// These arguments make the test's program another one.
const (
	// engineArgument: an engine, which panics on SIGUSR1 as GoBGP would on a bad message.
	engineArgument = "bgp-engine"
	// speakerArgument: a speaker that reads a Desired.
	speakerArgument = "bgp-speaker"
)

// testCommand is the Command of speakers in tests.
var testCommand = []string{os.Args[0], engineArgument}

func TestMain(m *testing.M) {
	switch {
	case slices.Contains(os.Args, engineArgument):
		if err := serveEngine(); err != nil {
			fmt.Fprintln(os.Stderr, "bgp:", err)
			os.Exit(1)
		}
	case slices.Contains(os.Args, speakerArgument):
		if err := serveSpeaker(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

func serveEngine() error {
	order := make(chan os.Signal, 1)
	signal.Notify(order, syscall.SIGUSR1)
	go func() {
		<-order
		panic("a message of death")
	}()
	return engine.Serve()
}

func serveSpeaker() error {
	s := New(Config{Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), Command: testCommand})
	var d Desired
	if err := json.NewDecoder(os.Stdin).Decode(&d); err != nil {
		return err
	}
	s.Set(d)
	return s.Run(context.Background())
}
