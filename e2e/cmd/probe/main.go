// Command probe runs on a host of the lab and probes the echo application, once
// or at a steady pace. It prints one line of JSON for each probe. Without -n it
// runs until its standard input is closed. The target - means that it waits for a
// line with one on its standard input. With -keep it opens connections, reports
// that, and sends one more request on each when its standard input is closed. With
// -load it sends -n requests without a pause, and prints how long they took. With -serve
// it answers at the address itself, and prints a line once it listens.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/probe"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run() error {
	var c probe.Config
	flag.StringVar(&c.Protocol, "protocol", probe.TCP, "`protocol`: tcp, udp or sctp")
	flag.DurationVar(&c.Every, "every", 5*time.Millisecond, "`time` between the starts of two probes")
	flag.DurationVar(&c.Timeout, "timeout", time.Second, "`time` to wait for an answer")
	flag.IntVar(&c.Count, "n", 0, "`number` of probes; 0 is until standard input is closed")
	keep := flag.Int("keep", 0, "`number` of connections to keep, instead of probes")
	load := flag.Int("load", 0, "`number` of requests at once, without a pause")
	serve := flag.Bool("serve", false, "answer at the address, instead of probes")
	flag.StringVar(&c.Forged, "forged", "", "`line` to send ahead of each request")
	flag.BoolVar(&c.UntilOK, "until-ok", false, "stop after the first good probe")
	flag.Parse()
	if flag.NArg() != 1 {
		return fmt.Errorf("got %d arguments, want one: ADDRESS:PORT", flag.NArg())
	}
	in := bufio.NewReader(os.Stdin)
	if c.Target = flag.Arg(0); c.Target == "-" {
		line, err := in.ReadString('\n')
		if err != nil {
			return fmt.Errorf("read the target: %w", err)
		}
		c.Target = strings.TrimSpace(line)
	}
	if c.Forged != "" {
		c.Forged += "\r\n"
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if c.Count == 0 || *keep > 0 {
		go func() {
			defer stop()
			// It carries no data; only its end matters.
			_, _ = io.Copy(io.Discard, in)
		}()
	}
	if *serve {
		return probe.Serve(ctx, c.Target, func() { fmt.Println("listening") })
	}
	out := json.NewEncoder(os.Stdout)
	var failed error
	if *load > 0 {
		return out.Encode(probe.Load(ctx, c, *load))
	}
	if *keep > 0 {
		kept, err := probe.Keep(ctx, c, *keep, func(k probe.Kept) { failed = out.Encode(k) })
		if err != nil {
			return err
		}
		return errors.Join(failed, out.Encode(kept))
	}
	err := probe.Run(ctx, c, func(r probe.Result) {
		if err := out.Encode(r); err != nil {
			failed = err
			stop()
		}
	})
	if err != nil {
		return err
	}
	return failed
}
