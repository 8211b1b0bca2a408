package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"time"
)

// talkTime bounds a talk with a worker.
const talkTime = 10 * time.Second

var errNoHash = errors.New("the running worker shows no configuration of ours")

// talk sends one line to a socket, and returns the answer.
func (a *agent) talk(ctx context.Context, name, text string) (string, error) {
	limit := talkTime
	if name == masterSocket {
		limit = commandTime
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(a.dir, name))
	if err != nil {
		return "", fmt.Errorf("talk to the engine: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := io.WriteString(conn, text+"\n"); err != nil {
		return "", fmt.Errorf("talk to the engine: %w", err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return "", fmt.Errorf("talk to the engine: %w", err)
	}
	return string(answer), nil
}

// running returns the hash of the running worker.
func (a *agent) running(ctx context.Context) (string, error) {
	text, err := a.talk(ctx, workerSocket, "show info")
	if err != nil {
		return "", err
	}
	if m := hashPattern.FindStringSubmatch(text); m != nil {
		return m[1], nil
	}
	return "", errNoHash
}

// old counts the old workers.
func (a *agent) old(ctx context.Context) (n int, err error) {
	text, err := a.talk(ctx, masterSocket, "show proc")
	if err != nil {
		return 0, err
	}
	_, old, _ := strings.Cut(text, "# old workers\n")
	for line := range strings.Lines(old) {
		if strings.HasPrefix(line, "#") {
			break
		}
		if strings.TrimSpace(line) != "" {
			n++
		}
	}
	return n, nil
}
