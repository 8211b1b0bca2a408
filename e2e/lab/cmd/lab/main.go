// Command lab brings up a real Kubernetes of several nodes in network
// namespaces on this machine, and breaks it on demand.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := dispatch(ctx, os.Args[1:])
	var misuse usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &misuse):
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 2
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "lab: interrupted:", err)
		return 130
	default:
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 1
	}
}

// usageError is a mistake of the caller's.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func dispatch(ctx context.Context, args []string) error {
	if len(args) == 0 {
		usage(os.Stderr)
		return usageError{"no command"}
	}
	if isHelp(args[0]) || args[0] == "help" {
		usage(os.Stdout)
		return nil
	}
	for _, c := range commands {
		if c.name != args[0] {
			continue
		}
		rest := args[1:]
		if len(rest) > 0 && isHelp(rest[0]) {
			fmt.Printf("usage: lab %s %s\n\n%s\n", c.name, c.args, c.long)
			return nil
		}
		if len(rest) < c.min || (c.max >= 0 && len(rest) > c.max) {
			return usageError{fmt.Sprintf("usage: lab %s %s", c.name, c.args)}
		}
		return c.run(ctx, rest)
	}
	return usageError{fmt.Sprintf("unknown command %q; see lab --help", args[0])}
}

func isHelp(arg string) bool { return arg == "--help" || arg == "-h" || arg == "-help" }

func usage(w io.Writer) {
	fmt.Fprintln(w, "lab brings up a real Kubernetes in network namespaces on this machine, and breaks it.")
	fmt.Fprintln(w, "\nusage: lab COMMAND [ARGUMENTS]    (lab COMMAND --help prints details)")
	fmt.Fprintln(w)
	for _, c := range commands {
		fmt.Fprintf(w, "  %-38s %s\n", c.name+" "+c.args, c.short)
	}
}
