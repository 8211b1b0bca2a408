package probe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// opensAtOnce bounds the connections that are opened in parallel: a listener's queue
// is finite.
const opensAtOnce = 20

// Kept counts which open connections survived an event.
type Kept struct {
	// Opened is the number of connections with a first answer, Answered the number with another one at the end.
	Opened   int `json:"opened"`
	Answered int `json:"answered"`
	// Errors counts the errors of the other connections.
	Errors map[string]int `json:"errors,omitempty"`
}

// Keep opens n TCP connections to the target, each with an answered request, and
// calls opened. When ctx ends it sends one more request on each and counts the
// answers. It returns an error if a connection cannot be opened within the timeout.
func Keep(ctx context.Context, c Config, connections int, opened func(Kept)) (Kept, error) {
	conns := make([]*kept, connections)
	defer func() {
		for _, k := range conns {
			if k != nil {
				k.conn.Close()
			}
		}
	}()
	errs := make([]error, connections)
	each(connections, opensAtOnce, func(i int) { conns[i], errs[i] = c.open(ctx) })
	for _, err := range errs {
		if err != nil {
			return Kept{}, fmt.Errorf("open a connection to keep: %w", err)
		}
	}
	out := Kept{Opened: connections}
	opened(out)
	<-ctx.Done()

	each(connections, connections, func(i int) { errs[i] = conns[i].ask(c) })
	for _, err := range errs {
		if err == nil {
			out.Answered++
			continue
		}
		if out.Errors == nil {
			out.Errors = map[string]int{}
		}
		out.Errors[cause(err)]++
	}
	return out, nil
}

// each runs f for 0 to n-1, a limited number in parallel.
func each(n, atOnce int, f func(int)) {
	slots := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		running.Go(func() { f(i); <-slots })
	}
	running.Wait()
}

// kept is one connection.
type kept struct {
	conn   net.Conn
	reader *bufio.Reader
}

func (c Config) open(ctx context.Context) (*kept, error) {
	// No TCP keepalives: the connection is idle between the requests.
	dialer := net.Dialer{Timeout: c.Timeout, KeepAlive: -1}
	conn, err := dialer.DialContext(ctx, "tcp", c.Target)
	if err != nil {
		return nil, err
	}
	k := &kept{conn, bufio.NewReader(conn)}
	if err := k.ask(c); err != nil {
		conn.Close()
		return nil, err
	}
	return k, nil
}

// ask sends a request and reads its answer.
func (k *kept) ask(c Config) error {
	if err := k.conn.SetDeadline(time.Now().Add(c.Timeout)); err != nil {
		return err
	}
	_, err := get(k.conn, k.reader, c.Target, c.Forged)
	return err
}

// cause returns an error's text without the ports, so that equal errors of several connections count together.
func cause(err error) string {
	var call *net.OpError
	if errors.As(err, &call) {
		return call.Op + ": " + call.Err.Error()
	}
	return err.Error()
}
