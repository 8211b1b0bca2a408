package nstest

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// startLimit is for a program to start on a machine that has much else to do.
const startLimit = 30 * time.Second

// Router is the processes of a router in a namespace. They end with the test.
type Router struct {
	t        *testing.T
	NS       *NS
	programs []*program
}

// program is one process of a router.
type program struct {
	argv []string
	// console is the socket that it makes when it is ready.
	console string
	cmd     *exec.Cmd
}

// newRouter makes a router without programs.
func newRouter(t *testing.T, ns *NS, needs ...string) *Router {
	t.Helper()
	for _, p := range needs {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("%s is not installed", p)
		}
	}
	r := &Router{t: t, NS: ns}
	t.Cleanup(r.Kill)
	return r
}

// Start starts its programs, one after the other, and returns when they are ready.
func (r *Router) Start() {
	r.t.Helper()
	for _, p := range r.programs {
		if err := os.Remove(p.console); err != nil && !errors.Is(err, fs.ErrNotExist) { // of the process before
			r.t.Fatal(err)
		}
		// A /var/tmp of its own: FRR leaves a directory for crash logs there. nsenter, unshare and sh replace themselves, so
		// signals reach the program.
		args := append([]string{"--mount", "--propagation", "private", "sh", "-c", `mount -t tmpfs tmpfs /var/tmp && exec "$0" "$@"`}, p.argv...)
		p.cmd = r.NS.Command("unshare", args...)
		p.cmd.Stdout, p.cmd.Stderr = r.t.Output(), r.t.Output()
		if err := p.cmd.Start(); err != nil {
			r.t.Fatalf("start %s: %v", p.argv[0], err)
		}
		Until(r.t, startLimit, p.argv[0]+" listens to its console", func() bool {
			_, err := os.Stat(p.console)
			return err == nil
		})
	}
}

// Signal sends a signal to all its programs.
func (r *Router) Signal(s syscall.Signal) {
	r.t.Helper()
	for _, p := range r.programs {
		if err := p.cmd.Process.Signal(s); err != nil {
			r.t.Fatalf("send %s to %s: %v", s, p.argv[0], err)
		}
	}
}

// Kill ends its programs as a power failure does.
func (r *Router) Kill() {
	for _, p := range r.programs {
		if p.cmd != nil && p.cmd.Process != nil {
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
		p.cmd = nil
	}
}

// Restart ends the router as a power failure does, and starts it again.
func (r *Router) Restart() {
	r.t.Helper()
	r.Kill()
	r.Start()
}

func (r *Router) write(path, text string) {
	r.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}
