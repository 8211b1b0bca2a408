// Command demo shows what Holdfast does, on this machine and on real
// components: it brings a cluster up, installs the chart, reaches Services from
// outside through layer 2 and BGP, powers a node off and measures the outage at a
// client. It leaves the cluster running.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab"
)

func main() {
	proxy := flag.String(
		"proxy",
		lab.ProxyNFTables,
		"`mode` of kube-proxy, if the lab is not up yet: nftables or iptables",
	)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	d := &demo{out: os.Stdout, proxy: *proxy}
	if !d.run(ctx) {
		os.Exit(1)
	}
}

// step is one thing that the demo does.
type step struct {
	name string
	what string // one line for people
	try  string // what a person can try next
	run  func(context.Context) error
}

func (d *demo) run(ctx context.Context) bool {
	start := time.Now()
	for i, s := range d.steps() {
		fmt.Fprintf(d.out, "\n[%d/%d] %s\n", i+1, len(d.steps()), s.what)
		if err := d.ticking(ctx, s.run); err != nil {
			if ctx.Err() != nil {
				err = errors.New("interrupted; the lab is as it was left, make demo goes on from there")
			}
			fmt.Fprintf(d.out, "demo: FAIL at %s: %s\n", s.name, strings.ReplaceAll(err.Error(), "\n", "; "))
			return false
		}
		if s.try != "" {
			fmt.Fprintf(d.out, "      try: %s\n", s.try)
		}
	}
	fmt.Fprintf(d.out, "demo: PASS in %.0f s\n", time.Since(start).Seconds())
	return true
}

// beat is the interval at which a long step prints its duration so far.
const beat = 10 * time.Second

// ticking runs a step, and prints its duration so far at each beat.
func (d *demo) ticking(ctx context.Context, run func(context.Context) error) error {
	done := make(chan error, 1)
	start := time.Now()
	go func() { done <- run(ctx) }()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-tick.C:
			fmt.Fprintf(d.out, "      ... %.0f s\n", time.Since(start).Seconds())
		}
	}
}

// print prints one line of a step.
func (d *demo) print(format string, args ...any) {
	fmt.Fprintf(d.out, "      "+format+"\n", args...)
}

// indented indents the output of the lab under a step.
type indented struct{ to io.Writer }

// Write is part of io.Writer; the lab writes whole lines.
func (w indented) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		if _, err := io.WriteString(w.to, "      "+line); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}
