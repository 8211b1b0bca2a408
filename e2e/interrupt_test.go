//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/holdfast-lb/holdfast/e2e/lab"
)

var (
	// interrupted ends when the tests are, by Ctrl-C for example.
	interrupted, interrupt = context.WithCancel(context.Background())
	// ours tells that the lab is to go with the tests.
	ours atomic.Bool
)

// TestMain takes the lab down also when the tests are interrupted: package testing runs no cleanup then.
func TestMain(m *testing.M) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-signals
		interrupt() // a lab that is on its way up goes by itself
		if ours.Load() {
			if err := lab.Down(context.Background()); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
		os.Exit(130)
	}()
	os.Exit(m.Run())
}
