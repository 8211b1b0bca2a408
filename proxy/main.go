// Command holdfast-proxy is the program of the proxies' pods. In one container it is the parent of HAProxy, in the other one the agent,
// which writes HAProxy's configuration.
package main

import (
	"fmt"
	"os"
	"slices"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch command {
	case "engine":
		return engineMain(args)
	case "agent":
		return keep(slices.Concat([]string{"/proc/self/exe", "work"}, args, []string{"--health-listen=" + healthListen}), healthListen, handoverTime)
	case "work":
		return agentMain(args)
	default:
		fmt.Fprintln(os.Stderr, "holdfast-proxy: want engine or agent")
		return 2
	}
}
