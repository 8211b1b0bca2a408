// Command holdfast-proxy is the program of the proxies' pods. It runs in two containers of a pod, which share a
// directory of files and sockets.
//
//	holdfast-proxy engine    # the parent of the HAProxy of each namespace: it starts, checks and ends workers
//	holdfast-proxy agent     # reads Services and Secrets, and writes the configurations
//
// The engine must need neither the API server nor the agent for the connections that it serves. The agent has the keys
// of the tenants' certificates: it must write them to files of the engine, and nowhere else.
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

// run runs the command that the first argument names, and returns the exit code.
func run(args []string) int {
	defer daemon.Stderr.Flush()
	command := ""
	if len(args) > 0 {
		command = args[0]
		args = args[1:]
	}

	switch command {
	case "engine":
		return engineMain(args)
	case "agent":
		begin := []string{"/proc/self/exe", "work"}
		end := []string{"--health-listen=" + healthListen}
		return supervise(slices.Concat(begin, args, end), healthListen, handoverTime)
	case "work":
		return agentMain(args)
	default:
		fmt.Fprintln(daemon.Stderr, "holdfast-proxy: want engine or agent")
		return 2
	}
}

const (
	// restartPause is the time between two starts of a program, so that repeated failures do not use a core.
	restartPause = time.Second
	// healthListen is the address of the agent's health check.
	healthListen = "127.0.0.1:9218"
	// checkInterval is the time between two health checks.
	checkInterval = 5 * time.Second
	// checkTime is the time in which the agent must answer a health check, and in which it must end.
	checkTime = 10 * time.Second
	// runTime bounds a run of the agent's loop: two commands to the engine, and some to a worker.
	runTime = 3 * commandTime
)

// supervise runs a program, and restarts it whenever it ends or hangs, until this process is ordered to end. An agent
// that dies or hangs must cost no connection: a pod is ready only while all its containers run, and the kubelet delays
// the restart of a container that fails repeatedly by minutes.
//
// After the order the program runs for the time stay. Endpoints are updated as long as the engine accepts new
// connections. Afterwards no socket of the engine accepts commands. HAProxy ends idle connections of HTTP then, and
// other ones with their next answer.
func supervise(command []string, health string, stay time.Duration) int {
	order, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, end := context.WithCancel(context.Background())
	context.AfterFunc(order, func() {
		time.AfterFunc(stay, end)
	})

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

// runOnce runs a program until it ends. It ends a program that hangs, and ends the program when ctx is cancelled.
func runOnce(ctx context.Context, command []string, health string) error {
	ctx, done := context.WithCancel(ctx)
	defer done()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdout = os.Stdout
	cmd.Stderr = daemon.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // only this process forwards signals to the program
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = checkTime

	if err := cmd.Start(); err != nil {
		return err
	}

	go killHanging(ctx, cmd.Process, health)
	return cmd.Wait()
}

// killHanging kills a process whenever its health check fails, until ctx is cancelled.
func killHanging(ctx context.Context, process *os.Process, health string) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(checkInterval):
		}

		err := checkHealth(health)
		if err != nil && ctx.Err() == nil {
			_ = process.Kill()
			fmt.Fprintf(daemon.Stderr, "holdfast-proxy: the agent hangs: %v\n", err)
		}
	}
}

// checkHealth returns an error if the agent does not answer, or answers that its loop hangs.
func checkHealth(health string) error {
	client := http.Client{
		Timeout:   checkTime,
		Transport: &http.Transport{DisableKeepAlives: true},
	}
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

// checkRun returns an error if the present run of the agent's loop lasts too long. began is its start; zero if none
// runs.
func checkRun(began time.Time) error {
	took := time.Since(began)
	if !began.IsZero() && took > runTime {
		return fmt.Errorf("a run has lasted %s", took.Round(time.Second))
	}
	return nil
}
