package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

// restartPause keeps a program that ends again and again from taking a core.
const restartPause = time.Second

// keep runs a program, and again whenever it ends, until this process is ordered to end. A pod is ready only while all its containers run:
// an agent that dies must cost no connection.
func keep(command []string) int {
	orders := make(chan os.Signal, 1)
	signal.Notify(orders, syscall.SIGINT, syscall.SIGTERM)
	for {
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // the order is this process's to pass on
		ended := make(chan error, 1)
		err := cmd.Start()
		if err == nil {
			go func() { ended <- cmd.Wait() }()
		} else {
			ended <- err
		}
		select {
		case <-orders:
			if err == nil {
				_ = cmd.Process.Signal(syscall.SIGTERM)
				<-ended
			}
			return 0
		case err = <-ended:
		}
		fmt.Fprintf(os.Stderr, "holdfast-proxy: the agent ended: %v\n", err)
		select {
		case <-orders:
			return 0
		case <-time.After(restartPause):
		}
	}
}
