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
	// pollTime is the time for which /frontends waits for a change.
	pollTime = 30 * time.Second
	// commandTime bounds a command of the agent.
	commandTime = busyTime + 10*time.Second
	// maxCommand bounds the length of a command in bytes.
	maxCommand = 128
)

// handler returns the handler for requests of speakers, the kubelet and Prometheus.
func (e *engine) handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(e.failures, e.endings, e.oldWorkers) // the agent reads them
	allowAll := func(context.Context, string) int { return http.StatusOK }

	mux := http.NewServeMux()
	mux.Handle("/", daemon.Health(daemon.AlwaysHealthy, e.checkReady))
	mux.Handle("GET /metrics", daemon.Metrics(registry, allowAll))
	mux.HandleFunc("GET /frontends", e.serveFrontends)
	return mux
}

// checkReady returns an error if the pod must not get Services, because it starts or ends. A namespace that is not
// served does not matter, since speakers read that from /frontends.
func (e *engine) checkReady() error {
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

// state returns the answer to /frontends, and a channel that is closed when the answer changes.
func (e *engine) state() (served, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.served, e.changed
}

// serveFrontends answers with the frontends that are served. If the query names the hash of the present answer, it
// waits for another one, up to pollTime.
func (e *engine) serveFrontends(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	answer, _ := e.state()
	if query.Has("after") {
		answer = e.awaitOther(r.Context(), query.Get("after"))
	}

	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the client may have disconnected
}

// awaitOther returns the answer to /frontends once its hash is another one than hash, or after pollTime.
func (e *engine) awaitOther(ctx context.Context, hash string) served {
	ctx, cancel := context.WithTimeout(ctx, pollTime)
	defer cancel()

	for {
		answer, changed := e.state()
		if answer.Hash != hash {
			return answer
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return answer
		}
	}
}

// serveCommands serves the commands of the agent, each with a namespace: reload, and old for the number of old workers.
func (e *engine) serveCommands(ctx context.Context) error {
	path := filepath.Join(e.dir, masterSocket)
	_ = os.Remove(path) // of an earlier engine
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return err
	}

	defer context.AfterFunc(ctx, func() {
		l.Close()
	})()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}

		go e.serveCommand(ctx, conn)
	}
}

// serveCommand reads one command from a connection, and answers it.
func (e *engine) serveCommand(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(commandTime))
	line, err := bufio.NewReader(io.LimitReader(conn, maxCommand)).ReadString('\n')
	if err != nil {
		return
	}

	verb, namespace, _ := strings.Cut(strings.TrimSpace(line), " ")
	e.mu.Lock()
	seat := e.seats[namespace]
	e.mu.Unlock()

	if seat == nil {
		_, _ = io.WriteString(conn, "the namespace has no seat yet\n") // the agent may have disconnected
		return
	}

	answer := make(chan string, 1)
	run := func() {
		switch verb {
		case "reload":
			seat.wanted = append(seat.wanted, answer)
		case "old":
			answer <- strconv.Itoa(len(seat.old))
		default:
			answer <- "Unknown command: want reload or old\n"
		}
	}
	if !seat.call(run) {
		return
	}

	select {
	case <-ctx.Done():
	case <-seat.over:
	case text := <-answer:
		_, _ = io.WriteString(conn, text) // the agent may have disconnected
	}
}
