package main

import (
	"context"
	"flag"
	"fmt"
	"io"

	"github.com/holdfast-lb/holdfast/e2e/lab"
	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

const lossHelp = `Lose frames of a host at random, ARP and NDP like all others: lab loss w1 --in 90.
The loss replaces the one before. Carrier stays up. lab heal ends it.

  --in P             how many of a hundred frames to the host are lost
  --out P            how many of a hundred frames from the host are lost
  --link LINK        lose on this link of the host only
  --udp              lose nothing but UDP
  --burst ON/OFF     lose for a time, pass all for a time, and so on: 500ms/500ms`

func loss(ctx context.Context, args []string) error {
	var of wire.Loss
	flags := flag.NewFlagSet("loss", flag.ContinueOnError)
	flags.Usage = func() {}
	flags.SetOutput(io.Discard)
	flags.IntVar(&of.In, "in", 0, "")
	flags.IntVar(&of.Out, "out", 0, "")
	flags.StringVar(&of.Link, "link", "", "")
	flags.BoolVar(&of.UDP, "udp", false, "")
	flags.Func("burst", "", func(text string) (err error) {
		of.Burst, of.Pause, err = wire.ParseBurst(text)
		return err
	})
	if err := flags.Parse(args[1:]); err != nil {
		return usageError{"loss: " + err.Error()}
	}
	if flags.NArg() > 0 {
		return usageError{fmt.Sprintf("loss: unexpected argument %q", flags.Arg(0))}
	}
	l, err := lab.Open()
	if err != nil {
		return err
	}
	return l.Loss(ctx, args[0], of)
}
