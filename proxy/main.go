// Command holdfast-proxy is the program of the proxies' pods. In one container it is the parent of HAProxy, in the
// other one the agent, which writes HAProxy's configuration.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	defer daemon.Stderr.Flush()
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch command {
	case "engine":
		return engineMain(args)
	case "agent":
		return keep(
			slices.Concat([]string{"/proc/self/exe", "work"}, args, []string{"--health-listen=" + healthListen}),
			healthListen,
			handoverTime,
		)
	case "work":
		return agentMain(args)
	default:
		fmt.Fprintln(daemon.Stderr, "holdfast-proxy: want engine or agent")
		return 2
	}
}

const (
	// restartPause keeps a program that ends again and again from taking a core.
	restartPause = time.Second
	// healthListen is where the agent shows whether it hangs. It is asked each checkInterval, and has checkTime to
	// answer, as to end.
	healthListen             = "127.0.0.1:9218"
	checkInterval, checkTime = 5 * time.Second, 10 * time.Second
	// runTime bounds a run of the agent's loop: two commands to the engine, and some to a worker.
	runTime = 3 * commandTime
)

// keep runs a program, and again whenever it ends or hangs, until this process is ordered to end. A pod is ready only
// while all its containers run, and the kubelet would leave one down for minutes that failed again and again: an agent
// that dies or hangs must cost no connection. For some time after the order it goes on: endpoints follow for as long as
// the engine takes new connections. Afterwards no socket of the engine takes commands, and HAProxy ends idle
// connections of HTTP, others with their next answer.
func keep(command []string, health string, stay time.Duration) int {
	order, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, end := context.WithCancel(context.Background())
	context.AfterFunc(order, func() { time.AfterFunc(stay, end) })
	for ctx.Err() == nil {
		err := runOnce(ctx, command, health)
		fmt.Fprintf(daemon.Stderr, "holdfast-proxy: the agent ended: %v\n", err)
		select {
		case <-ctx.Done():
		case <-time.After(restartPause):
		}
	}
	return 0
}

// runOnce runs a program until it ends, and has it end when it hangs or ctx is cancelled.
func runOnce(ctx context.Context, command []string, health string) error {
	ctx, done := context.WithCancel(ctx)
	defer done()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, daemon.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the order is this process's to pass on
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(syscall.SIGTERM) }, checkTime
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(checkInterval):
			}
			if err := hangs(health); err != nil && ctx.Err() == nil {
				_ = cmd.Process.Kill()
				fmt.Fprintf(daemon.Stderr, "holdfast-proxy: the agent hangs: %v\n", err)
			}
		}
	}()
	return cmd.Wait()
}

// hangs returns an error if the agent does not answer, or answers that its loop hangs.
func hangs(health string) error {
	client := http.Client{Timeout: checkTime, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + health + "/healthz")
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil // it starts, or waits for the API server
	}
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", answer.Status)
	}
	return nil
}

// alive returns an error if a run of the agent's loop lasts too long; the zero Time is for no run.
func alive(began time.Time) error {
	if took := time.Since(began); !began.IsZero() && took > runTime {
		return fmt.Errorf("a run has lasted %s", took.Round(time.Second))
	}
	return nil
}
