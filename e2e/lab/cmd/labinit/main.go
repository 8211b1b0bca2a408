// Command labinit is PID 1 of a host of the lab; the lab starts it.
package main

import (
	"fmt"
	"os"

	"github.com/holdfast-lb/holdfast/e2e/lab/hostinit"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: labinit SPECIFICATION")
		os.Exit(2)
	}
	if err := hostinit.Run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "labinit:", err)
		os.Exit(1)
	}
}
