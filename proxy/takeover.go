package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-lb/holdfast/internal/haproxy"
)

// checkWorkers asks the workers whether they answer. A worker that starts takes over when it answers, and a worker that
// hangs is killed.
func (s *seat) checkWorkers(at time.Time) {
	if s.next != nil {
		hash, err := ask(context.Background(), s.next.socket, askTimeout)
		if err == nil {
			s.takeOver(at, hash)
			return
		}

		if errors.Is(err, os.ErrDeadlineExceeded) { // otherwise it does not listen yet
			s.next.countIdle()
		}

		s.killHanging(at, s.next, s.next.started, err)
	}

	isDue := at.Sub(s.askedAt) >= lookInterval
	if s.serving == nil || !isDue {
		return
	}

	s.askedAt = at
	_, err := ask(context.Background(), s.serving.socket, askTimeout)
	if err == nil || s.serving.isFull() {
		s.answeredAt = at
		s.serving.idleChecks = 0
	} else {
		s.serving.countIdle()
	}

	s.killHanging(at, s.serving, s.answeredAt, err)
}

// countIdle counts a check without an answer. A worker that worked since the last check is idle for the first time.
func (w *worker) countIdle() {
	if w.hasWorked() {
		w.idleChecks = 1
	} else {
		w.idleChecks++
	}
}

// killHanging kills a worker that hangs. since is the time from which it should have answered.
func (s *seat) killHanging(at time.Time, w *worker, since time.Time, err error) {
	hangs := w.idleChecks >= maxIdleChecks || at.Sub(since) >= busyTime
	if !hangs {
		return
	}

	s.fail("hung", w, err)
	w.idleChecks = 0
	_ = w.cmd.Process.Kill()
}

// takeOver makes the worker that started serve as soon as only it listens. Before that both have the same listeners,
// and the former worker would answer new clients by the former configuration.
func (s *seat) takeOver(at time.Time, hash string) {
	s.answeredAt = at
	s.linkSocket()
	if s.serving != nil {
		s.retire(at)
	}

	n := len(s.old)
	isAlone := n == 0 || !s.old[n-1].mayListen(at)
	if isAlone {
		s.promote(at, hash)
	}
}

// linkSocket atomically makes workerSocket a link to the socket of the worker that started.
func (s *seat) linkSocket() {
	link := filepath.Join(s.dir, workerSocket)
	partial := filepath.Join(s.dir, workerSocket+".partial")
	_ = os.Remove(partial)

	linkErr := os.Symlink(filepath.Base(s.next.socket), partial)
	renameErr := os.Rename(partial, link)
	if err := errors.Join(linkErr, renameErr); err != nil {
		s.log.Error("the agent cannot reach the worker", "error", err)
	}
}

// fail counts and logs a failure of a worker.
func (s *seat) fail(what string, w *worker, why any) {
	s.failures.WithLabelValues(what).Inc()
	s.log.Error("a worker of HAProxy failed", "what", what, "pid", w.pid(), "why", why)
}

// promote makes the worker that started the serving one.
func (s *seat) promote(at time.Time, hash string) {
	s.serving = s.next
	s.next = nil
	s.attempts.tryGood = false

	config := s.serving.config
	s.serving.config = ""
	if hash != s.present.hash {
		s.present = seatView{
			hash:      hash,
			frontends: haproxy.Frontends(config),
		}
	}

	s.present.refused = false

	limit := maxConn(config)
	s.connections = share{
		limit:     limit,
		left:      limit,
		countedAt: at.Add(-shareInterval),
	}

	after := at.Sub(s.serving.started).String()
	s.log.Info("a worker serves", "pid", s.serving.pid(), "configuration", hash, "old workers", len(s.old), "after", after)
	if err := put(s.dir, goodFile, config); err != nil {
		s.log.Error("cannot keep the configuration", "error", err)
	}

	s.answer("Success=1\n")
	for i := 0; len(s.old)-i >= s.maxWorkers; i++ {
		if !s.old[i].isEnding {
			s.end(s.old[i], "limit")
		}
	}
}
