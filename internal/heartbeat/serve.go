package heartbeat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
)

// Files that the process of the beats is started with, after the standard ones.
const (
	connFile = iota + 3
	memoryFile
)

// mostThreads is how many run Go code at once: all have real-time priority.
const maxThreads = 2

// Serve is what the process of Config.Command does: it takes part for the process that
// started it until that says so, says goodbye and returns nil. It returns an error when it cannot
// listen, or was started by somebody else, and without a goodbye when that process is gone; beats end with the
// process that called it, which is to be at once: then the kernel refuses what comes, as for any speaker
// that was killed.
func Serve() error {
	conn, err := net.FileConn(os.NewFile(connFile, "speaker"))
	if err != nil {
		return fmt.Errorf("only the speaker starts this: %w", err)
	}
	s, err := mapShared(os.NewFile(memoryFile, "shared memory"))
	if err != nil {
		return err
	}
	// Whoever signals the whole group means the speaker, which then tells this process to leave.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	in, out := json.NewDecoder(conn), &noticeWriter{out: json.NewEncoder(conn)}
	var first order
	if err := in.Decode(&first); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	c := first.Settings
	if c == nil || first.Peers == nil {
		return errors.New("the first order has no settings")
	}
	runtime.GOMAXPROCS(maxThreads)
	collectRarely()
	var b *budget
	if !c.Ordinary {
		b = newBudget(s, c.Cooldown)
		b.watch(func(o overrun) { out.write(notice{Overrun: &o}) })
		if c.Cooldown == 0 {
			b.begin() // the thread that beats says how it fares
		}
	}
	var h *Heartbeat
	h, err = newHeartbeat(Config{
		Log: slog.New(slog.DiscardHandler), NodeName: c.NodeName, Address: c.Address, Port: c.Port, Keys: first.Keys,
		Timers: c.Timers, Ordinary: c.Ordinary,
		Changed: func() { v := h.View(); out.write(notice{View: &v}) },
	}, s)
	if err != nil {
		return err
	}
	h.forward = func(q question) { out.write(notice{Ask: &q}) }
	h.budget = b
	h.Set(*first.Peers)
	ctx, leave := context.WithCancel(context.Background()) // not cancelled by a return: that would say goodbye
	gone, ran := make(chan error, 1), make(chan error, 1)
	go func() { gone <- h.readOrders(in, leave) }()
	go func() { ran <- h.Run(ctx) }()
	select {
	case err := <-gone:
		return fmt.Errorf("the speaker is gone: %w", err)
	case err := <-ran:
		if err != nil {
			out.write(notice{Error: err.Error()})
		}
		return err
	}
}

// follow does what it is told until nobody is there who would.
func (h *Heartbeat) readOrders(in *json.Decoder, leave func()) error {
	for {
		var o order
		if err := in.Decode(&o); err != nil {
			return err
		}
		switch {
		case o.Leave:
			leave()
		case o.Answer != nil:
			h.answered(*o.Answer)
		case o.Keys != nil:
			if err := h.SetKeys(o.Keys); err != nil {
				return err // they were checked before they were sent
			}
		case o.Peers != nil:
			h.Set(*o.Peers)
		}
	}
}

// teller writes one notice at a time.
type noticeWriter struct {
	mu  sync.Mutex
	out *json.Encoder
}

func (t *noticeWriter) write(n notice) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.out.Encode(n) // fails only when nobody reads, which follow notices
}
