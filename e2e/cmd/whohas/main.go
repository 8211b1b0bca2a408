// Command whohas runs on a host of the lab, resolves some addresses by ARP and NDP,
// and prints one line of JSON for each claim that it receives, requested or not,
// until its standard input is closed.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/whohas"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "whohas:", err)
		os.Exit(1)
	}
}

func run() error {
	var c whohas.Config
	flag.StringVar(&c.Link, "link", "eth0", "`name` of the link to ask on")
	flag.DurationVar(&c.Every, "every", 20*time.Millisecond, "`time` between two questions for each address")
	flag.Func("from", "`address` to ask from, one of each family", func(text string) error {
		return parse(&c.From, text)
	})
	flag.Parse()
	for _, arg := range flag.Args() {
		if err := parse(&c.Targets, arg); err != nil {
			return err
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		defer stop()
		// It carries no data; only its end matters.
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	out := json.NewEncoder(os.Stdout)
	var failed error
	err := whohas.Run(ctx, c, func(claim whohas.Claim) {
		if err := out.Encode(claim); err != nil {
			failed = err
			stop()
		}
	})
	if err != nil {
		return err
	}
	return failed
}

func parse(list *[]netip.Addr, text string) error {
	a, err := netip.ParseAddr(text)
	*list = append(*list, a)
	return err
}
