// Command echo is the application of the tests: over HTTP and UDP it answers
// with its pod, its node, and the client address that it saw. Behind a PROXY protocol header it
// tells what the header says, and through whom the connection came.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	httpAddr := flag.String("http", ":8080", "address of HTTP")
	udpAddr := flag.String("udp", ":8081", "address of UDP")
	behindAddr := flag.String("behind", ":8082", "address of HTTP behind a PROXY protocol header")
	grace := flag.Duration("grace", 2*time.Second, "time to keep serving after SIGTERM")
	flag.Parse()
	if err := ahead(); err != nil {
		fmt.Fprintln(os.Stderr, "echo: without real-time priority:", err)
	}
	if err := run(*httpAddr, *udpAddr, *behindAddr, *grace); err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		os.Exit(1)
	}
}

// ahead starts this program again with real-time priority, unless it has that. All nodes of the lab share the cores of
// one machine, while the program stands for servers on other machines: what it answers late looks like an outage of the
// network.
func ahead() error {
	runtime.LockOSThread() // a program inherits the policy of the thread that starts it
	policy, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return os.NewSyscallError("sched_getattr", err)
	}
	if policy.Policy == unix.SCHED_RR {
		runtime.UnlockOSThread()
		return nil
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_RR, Priority: 1}, 0); err != nil {
		return os.NewSyscallError("sched_setattr", err)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return os.NewSyscallError("execve", unix.Exec(program, os.Args, os.Environ()))
}

// answer is what every client gets, as one line of JSON.
type answer struct {
	Pod    string `json:"pod"`
	Node   string `json:"node"`
	Client string `json:"client"`
	// Via is who connected, if a PROXY protocol header named the client, and To what the header gives as the client's
	// destination.
	Via string `json:"via,omitempty"`
	To  string `json:"to,omitempty"`
	// Forwarded are X-Forwarded-For, -Proto and -Port.
	Forwarded []string `json:"forwarded,omitempty"`
}

func newAnswer(client netip.AddrPort) answer {
	return answer{Pod: os.Getenv("POD_NAME"), Node: os.Getenv("NODE_NAME"), Client: client.Addr().Unmap().String()}
}

func (a answer) line() []byte {
	// Strings always marshal.
	b, _ := json.Marshal(a)
	return append(b, '\n')
}

func run(httpAddr, udpAddr, behindAddr string, grace time.Duration) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	packets, err := net.ListenPacket("udp", udpAddr)
	if err != nil {
		return fmt.Errorf("listen on UDP: %w", err)
	}
	// On a busy machine this process sometimes does not run for a while. Requests of that time must
	// be answered late, and not lost: an outage at a client must come from the network.
	if err := packets.(*net.UDPConn).SetReadBuffer(1 << 20); err != nil {
		return fmt.Errorf("set the receive buffer of UDP: %w", err)
	}
	server := &http.Server{Addr: httpAddr, Handler: handler(), ReadHeaderTimeout: time.Minute}
	failed := make(chan error, 3)
	go func() { failed <- server.ListenAndServe() }()
	go func() { failed <- servePackets(packets.(*net.UDPConn)) }()
	go func() { failed <- listenBehind(behindAddr) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	// Requests still arrive until every node has removed this pod's endpoint.
	time.Sleep(grace)
	end, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return errors.Join(packets.Close(), server.Shutdown(end))
}

func handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		client, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		a := newAnswer(client)
		if c, ok := r.Context().Value(headerKey{}).(*headed); ok {
			a.Client, a.Via, a.To = c.header.from.Addr().String(), a.Client, c.header.to.String()
		}
		if names, found := r.Header["X-Forwarded-For"]; found {
			a.Forwarded = []string{
				strings.Join(names, ", "),
				r.Header.Get("X-Forwarded-Proto"),
				r.Header.Get("X-Forwarded-Port"),
			}
		}
		// A client that has gone needs no answer.
		_, _ = w.Write(a.line())
		// A larger body, for tests that need packets of full size.
		more, err := strconv.Atoi(r.FormValue("more"))
		if err == nil && more > 0 && more <= 1<<20 {
			_, _ = w.Write(bytes.Repeat([]byte("."), more))
		}
	})
	return mux
}

func servePackets(conn *net.UDPConn) error {
	buf := make([]byte, 1<<16)
	for {
		_, from, err := conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		// An unreachable sender is no reason to stop.
		_, _ = conn.WriteToUDPAddrPort(newAnswer(from).line(), from)
	}
}
