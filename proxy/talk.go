package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"time"
)

// talkTime bounds a talk with a worker.
const talkTime = 10 * time.Second

var errNoHash = errors.New("the running worker shows no configuration of ours")

// talk sends one line to a socket, and returns the answer.
func talk(ctx context.Context, path, text string, limit time.Duration) (string, error) {
	dialer := net.Dialer{Deadline: time.Now().Add(limit)}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return "", fmt.Errorf("talk to the engine: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err = conn.SetDeadline(dialer.Deadline); err == nil {
		_, err = io.WriteString(conn, text+"\n")
	}
	var answer []byte
	if err == nil {
		answer, err = io.ReadAll(conn)
	}
	if err != nil {
		return "", fmt.Errorf("talk to the engine: %w", err)
	}
	return string(answer), nil
}

func (a *agent) talk(ctx context.Context, name, text string) (string, error) {
	limit := talkTime
	if name == masterSocket {
		limit = commandTime
	}
	return talk(ctx, filepath.Join(a.dir, name), text, limit)
}

// running returns the hash of the running worker.
func (a *agent) running(ctx context.Context) (string, error) {
	return ask(ctx, filepath.Join(a.dir, workerSocket), talkTime)
}

// old counts the old workers.
func (a *agent) old(ctx context.Context) (int, error) {
	text, err := a.talk(ctx, masterSocket, "old")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}
