package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/holdfast-lb/holdfast/internal/nstest"
)

// TestKeep: an agent that ends or hangs is started again, and the pod's order to end ends both, after endpoints have followed for a while.
func TestKeep(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	lines := func() string { text, _ := os.ReadFile(log); return string(text) }
	var hang atomic.Bool
	health := httptest.NewServer(daemon.Health(func() error {
		if hang.Load() {
			return alive(time.Now().Add(-runTime - time.Second))
		}
		return alive(time.Time{})
	}, daemon.Runs))
	defer health.Close()
	const stay = time.Second
	ended := make(chan int, 1)
	go func() {
		ended <- keep([]string{"sh", "-c", "trap 'echo y >> " + log + "; exit' TERM; echo x >> " + log + "; test $(wc -l < " + log +
			") = 1 && exit 2; while :; do sleep 0.1; done"},
			strings.TrimPrefix(health.URL, "http://"), stay)
	}()
	nstest.Until(t, 10*time.Second, "it starts again", func() bool { return lines() == "x\nx\n" })
	hang.Store(true)
	nstest.Until(t, 2*checkInterval, "it starts again when it hangs", func() bool { return lines() == "x\nx\nx\n" })
	hang.Store(false)
	ordered := time.Now()
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case code := <-ended:
		if took := time.Since(ordered); took < stay || code != 0 || lines() != "x\nx\nx\ny\n" {
			t.Errorf("after %v: code %d, %q", took, code, lines())
		}
	case <-time.After(10 * time.Second):
		t.Error("it does not end")
	}
}

// TestHangs: an agent that is stopped does not answer; an agent that does not listen yet waits for the API server.
func TestHangs(t *testing.T) {
	t.Parallel()
	stopped, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	lives := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }))
	defer lives.Close()
	for at, want := range map[string]bool{
		stopped.Addr().String():                  true,
		strings.TrimPrefix(lives.URL, "http://"): false,
		"127.0.0.1:" + freePort(t):               false,
	} {
		if err := hangs(at); (err != nil) != want {
			t.Errorf("%s: %v, want an error: %t", at, err, want)
		}
	}
	if err := errors.Join(alive(time.Now().Add(-commandTime)), alive(time.Time{})); err != nil {
		t.Errorf("a run that waits for the engine, and none: %v", err)
	}
}
