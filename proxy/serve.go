package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-lb/holdfast/internal/daemon"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// pollTime is how long /frontends waits for a change.
	pollTime = 30 * time.Second
	// commandTime bounds a command of the agent, maxCommand its length.
	commandTime, maxCommand = busyTime + 10*time.Second, 128
)

// handler serves what speakers, the kubelet and Prometheus ask.
func (e *engine) handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(e.failures, e.endings, e.oldWorkers) // the agent shows them
	mux := http.NewServeMux()
	mux.Handle("/", daemon.Health(daemon.AlwaysHealthy, func() error {
		return e.isReady()
	}))
	mux.Handle("GET /metrics", daemon.Metrics(registry, func(context.Context, string) int { return http.StatusOK }))
	mux.HandleFunc("GET /frontends", e.serveFrontends)
	return mux
}

// isReady returns an error while the pod is not to get Services: it starts, or ends. A namespace that is not served has
// no part in that: speakers know it from /frontends.
func (e *engine) isReady() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !e.leaving.IsZero():
		return errors.New("the proxy ends")
	case e.first.IsZero():
		return errors.New("the agent has not read the cluster's Services yet")
	case !e.ready:
		return errors.New("not each namespace is served yet")
	}
	return nil
}

// state returns what is served, and a channel that is closed when that changes.
func (e *engine) state() (served, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.served, e.changed
}

func (e *engine) serveFrontends(w http.ResponseWriter, r *http.Request) {
	limit := time.NewTimer(pollTime)
	defer limit.Stop()
	what, changed := e.state()
	for query := r.URL.Query(); query.Has("after") && query.Get("after") == what.Hash; what, changed = e.state() {
		select {
		case <-changed:
			continue
		case <-limit.C:
		case <-r.Context().Done():
		}
		break
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(what) // it went away
}

// serveCommands serves the commands of the agent, each with a namespace: reload, and old for the number of old workers.
func (e *engine) serveCommands(ctx context.Context) error {
	path := filepath.Join(e.dir, masterSocket)
	_ = os.Remove(path) // of an engine before
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		go e.command(ctx, conn)
	}
}

func (e *engine) command(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(commandTime))
	line, err := bufio.NewReader(io.LimitReader(conn, maxCommand)).ReadString('\n')
	if err != nil {
		return
	}
	answer := make(chan string, 1)
	verb, namespace, _ := strings.Cut(strings.TrimSpace(line), " ")
	e.mu.Lock()
	seat := e.seats[namespace]
	e.mu.Unlock()
	if seat == nil {
		_, _ = io.WriteString(conn, "the namespace has no seat yet\n") // it went away
		return
	}
	call := func() { answer <- "Unknown command: want reload or old\n" }
	switch verb {
	case "reload":
		call = func() { seat.wanted = append(seat.wanted, answer) }
	case "old":
		call = func() { answer <- strconv.Itoa(len(seat.old)) }
	}
	if !seat.call(call) {
		return
	}
	select {
	case <-ctx.Done():
	case <-seat.over:
	case text := <-answer:
		_, _ = io.WriteString(conn, text) // it went away
	}
}
