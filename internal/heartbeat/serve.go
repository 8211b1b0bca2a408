package heartbeat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync"

	"github.com/holdfast-lb/holdfast/internal/child"
)

// maxThreads is how many run Go code at once: all have real-time priority. One is the heartbeats', one the Guest's.
const maxThreads = 3

// Serve is the heartbeat process of Config.Command: it takes part for the speaker that started it. When that speaker
// orders it to leave, it says goodbye and returns nil. It returns an error when it cannot listen, or was not started by
// a speaker, and without a goodbye when the speaker is gone. Heartbeats stop as soon as the caller exits, which should
// be at once: then the kernel refuses packets, as for any speaker that was killed. The Guest may be nil.
func Serve(run Guest) error {
	conn, err := child.Parent()
	if err != nil {
		return err
	}
	s, err := mapShared(os.NewFile(memoryFile, "shared memory"))
	if err != nil {
		return err
	}
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
			b.begin() // the thread publishes whether that worked
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
	leaveGuest, err := startGuest(run, h.speakerHangs)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background()) // not cancelled by a return: that would say goodbye
	gone, ran := make(chan error, 1), make(chan error, 1)
	go func() { gone <- h.readOrders(in, stop) }()
	go func() { ran <- h.Run(ctx) }()
	select {
	case err := <-gone:
		return fmt.Errorf("the speaker is gone: %w", err)
	case err := <-ran:
		if err != nil {
			out.write(notice{Error: err.Error()})
			return err
		}
		leaveGuest()
		return nil
	}
}

// readOrders obeys orders until the speaker is gone.
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

// noticeWriter writes one notice at a time.
type noticeWriter struct {
	mu  sync.Mutex
	out *json.Encoder
}

func (w *noticeWriter) write(n notice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(n) // fails only when the speaker is gone, which readOrders notices
}
