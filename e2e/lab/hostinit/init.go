package hostinit

import (
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stageVar marks the second run of the program, after it entered its namespaces.
const stageVar = "LAB_INIT_STAGE"

// firstInherited is the first file descriptor after the standard three.
const firstInherited = 3

// restartDelay is what systemd units of such daemons commonly use.
const restartDelay = time.Second

// Run is PID 1. It returns only when the host cannot be brought up.
func Run(specPath string) error {
	s, err := Load(specPath)
	if err != nil {
		return err
	}
	if os.Getenv(stageVar) == "" {
		return enter(s)
	}
	if err := furnish(s); err != nil {
		return err
	}
	if err := settleCgroup(); err != nil {
		return err
	}
	return supervise(s.Services)
}

// enter joins the namespaces that can be joined only after the process is in
// its cgroup, then replaces itself: a namespace belongs to a thread, and a
// fresh program has one thread only.
func enter(s *Spec) error {
	runtime.LockOSThread()
	ns, err := os.Open(s.Netns)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("unshare cgroup namespace: %w", err)
	}
	// A host outlives the command that started it, and must not keep the inherited files of that
	// command open: a lock, or a pipe on which another process waits.
	if err := unix.CloseRange(firstInherited, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("let go of inherited files: %w", err)
	}
	return syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), stageVar+"=2"))
}

// supervise starts the services, starts again what ends, and reaps everything
// else: the parents of containers end early and leave them to PID 1.
func supervise(services []Service) error {
	// Registered before the first start, so that no child's end is missed.
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	due := make(chan Service)
	for _, svc := range services {
		go func() {
			waitGate(svc.Gate)
			due <- svc
		}()
	}
	if err := touch(ReadyFile); err != nil {
		return err
	}
	running := make(map[int]Service)
	for {
		select {
		case svc := <-due:
			pid, err := start(svc)
			if err != nil {
				return err
			}
			running[pid] = svc
		case <-ended:
			for pid := reap(); pid > 0; pid = reap() {
				svc, ok := running[pid]
				if !ok {
					continue
				}
				delete(running, pid)
				fmt.Fprintf(
					os.Stderr,
					"%s service %s ended, starting it again in %s\n",
					time.Now().Format(time.RFC3339),
					svc.Name,
					restartDelay,
				)
				time.AfterFunc(restartDelay, func() { due <- svc })
			}
		}
	}
}

// ReadyFile exists, inside the host, once its services are being started.
const ReadyFile = "/run/lab.ready"

func touch(path string) error { return os.WriteFile(path, nil, 0o644) }

// start runs a service in a session of its own. It goes past package os, whose
// own waiting for children would compete with the reaper.
func start(svc Service) (int, error) {
	log, err := os.OpenFile(
		filepath.Join(PrivateDir, LogDir, svc.Name+".log"),
		os.O_CREATE|os.O_WRONLY|os.O_APPEND,
		0o644,
	)
	if err != nil {
		return 0, fmt.Errorf("open log of %s: %w", svc.Name, err)
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	pid, err := syscall.ForkExec(svc.Argv[0], svc.Argv, &syscall.ProcAttr{
		Dir:   "/",
		Env:   svc.Env,
		Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", svc.Name, err)
	}
	return pid, nil
}

// reap collects one ended child and returns its pid, or 0 if there is none.
func reap() int {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return 0
		}
		return pid
	}
}
