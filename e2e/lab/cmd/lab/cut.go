package main

import (
	"context"
	"flag"
	"io"

	"github.com/holdfast-lb/holdfast/e2e/lab"
	"github.com/holdfast-lb/holdfast/e2e/lab/wire"
)

const cutHelp = `Drop every frame from some hosts to others, and none of those back:
lab cut w1 '>' w2,w3. With --link only what leaves the former by that link is
dropped. A host may be on both sides. A cut replaces the one before. Carrier
stays up. lab heal ends it.`

func cut(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("cut", flag.ContinueOnError)
	flags.Usage = func() {}
	flags.SetOutput(io.Discard)
	link := flags.String("link", "", "")
	if err := flags.Parse(args); err != nil {
		return usageError{"cut: " + err.Error()}
	}
	from, to, err := wire.ParseCut(flags.Args())
	if err != nil {
		return usageError{err.Error()}
	}
	l, err := lab.Open()
	if err != nil {
		return err
	}
	return l.Cut(ctx, *link, from, to)
}
