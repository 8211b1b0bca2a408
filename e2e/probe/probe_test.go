package probe

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// What each error of a probe says about the way to the server.
func TestErrors(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for _, tc := range []struct{ protocol, target, want string }{
		{TCP, mute.Addr().String(), "no answer in time"},
		{UDP, packets.LocalAddr().String(), "no answer in time"},
		{TCP, closed.Addr().String(), "connection refused"},
	} {
		c := Config{Protocol: tc.protocol, Target: tc.target, Every: time.Second, Timeout: 100 * time.Millisecond, Count: 1}
		err := Run(t.Context(), c, func(r Result) {
			if r.OK || !strings.Contains(r.Error, tc.want) {
				t.Errorf("%s: %+v, want the error %q", tc.protocol, r, tc.want)
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A connection that succeeds because its SYN came again is not a good probe.
func TestLostSYN(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte("{}"))
	}))
	defer s.Close()
	// The kernel drops each SYN while the queue of a listener is full.
	raw, err := s.Listener.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = syscall.Listen(int(fd), 0) }); err != nil {
		t.Fatal(err)
	}
	target := s.Listener.Addr().String()
	for range 4 { // more than it has room for
		if conn, err := net.DialTimeout("tcp", target, 100*time.Millisecond); err == nil {
			defer conn.Close()
		}
	}
	var serve sync.WaitGroup
	defer serve.Wait()
	serve.Go(func() {
		// A line of /proc/net/tcp has the state 02 after the remote port while a SYN waits for its answer.
		waits := fmt.Sprintf(":%04X 02 ", s.Listener.Addr().(*net.TCPAddr).Port)
		poll := time.NewTicker(10 * time.Millisecond)
		defer poll.Stop()
		for seen := false; !seen && t.Context().Err() == nil; <-poll.C {
			table, err := os.ReadFile("/proc/net/tcp")
			if err != nil {
				t.Error(err)
				break
			}
			seen = strings.Contains(string(table), waits)
		}
		s.Start()
	})
	err = Run(t.Context(),
		Config{Protocol: TCP, Target: target, Every: time.Second, Timeout: 5 * time.Second, Count: 1}, func(r Result) {
			if r.OK || r.Error != "the first SYN or its answer was lost" {
				t.Errorf("%+v, want a lost SYN", r)
			}
		})
	if err != nil {
		t.Error(err)
	}
}

// An answer is in time however long the process did not run before it came.
func TestStall(t *testing.T) {
	const target, timeout = "HOLDFAST_PROBE", time.Second
	if to := os.Getenv(target); to != "" {
		err := Run(t.Context(),
			Config{Protocol: TCP, Target: to, Every: time.Second, Timeout: timeout, Count: 1}, func(r Result) {
				if err := json.NewEncoder(os.Stderr).Encode(r); err != nil {
					t.Error(err)
				}
			})
		if err != nil {
			t.Error(err)
		}
		return
	}
	stopped := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		stopped <- struct{}{} // the request is here
		<-stopped
		w.Write([]byte("{}"))
	}))
	defer s.Close()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestStall$")
	cmd.Env = append(os.Environ(), target+"="+s.Listener.Addr().String())
	var out strings.Builder
	cmd.Stderr = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-stopped:
	case <-time.After(time.Minute):
		t.Fatal("the probe sent no request")
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Error(err)
	}
	if _, err := syscall.Wait4(cmd.Process.Pid, nil, syscall.WUNTRACED, nil); err != nil { // until it has stopped
		t.Error(err)
	}
	<-time.After(timeout * 3 / 2)
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Error(err)
	}
	<-time.After(timeout / parts) // in which a timeout that went on would end the probe
	stopped <- struct{}{}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	var r Result
	if err := json.Unmarshal([]byte(out.String()), &r); err != nil {
		t.Fatal(err)
	}
	if !r.OK || r.Duration < timeout {
		t.Errorf("%+v, want an answer after more than %s", r, timeout)
	}
}
