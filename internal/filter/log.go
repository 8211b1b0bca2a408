package filter

import (
	"context"
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// readLog writes the drops that doors want logged to the log of the process, until the context ends. How many
// there are is bounded by the rules that log.
func (t *Table) readLog(ctx context.Context) {
	for ctx.Err() == nil {
		if err := t.copyLog(ctx); err != nil {
			t.log.Warn("drops cannot be logged", "err", err)
			rest(ctx, t.timers.CheckInterval)
		}
	}
}

// copyLog copies until the context ends or the socket fails.
func (t *Table) copyLog(ctx context.Context) error {
	conn, err := openLog(logGroup)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	for {
		messages, err := conn.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			continue
		case err != nil:
			return err
		}
		for _, m := range messages {
			if l, ok := parseLogged(m); ok {
				t.note(l)
			}
		}
	}
}

// note logs one drop.
func (t *Table) note(l logged) {
	h, ok := parseHeader(l.payload)
	if !ok {
		return
	}
	service, protocol := t.behind(h)
	t.log.Info("packet refused", "service", service, "reason", strings.TrimSpace(l.prefix),
		"source", h.from, "address", h.to, "protocol", protocol, "port", h.port)
}

// behind finds the Service whose door a packet came to, and the name of its protocol.
func (t *Table) behind(h header) (lb.Key, string) {
	t.mu.Lock()
	img := t.actual
	t.mu.Unlock()
	var name string
	for _, p := range []string{"TCP", "UDP", "SCTP"} {
		if n, _ := protocolNumber(p); n == h.protocol {
			name = p
		}
	}
	if img == nil {
		return lb.Key{}, name
	}
	at := door{Door: lb.Door{Address: h.to, Protocol: name, Port: h.port}}
	i, ok := slices.BinarySearchFunc(img.doors, at, func(a, b door) int { return a.compare(&b) })
	if !ok {
		return lb.Key{}, name
	}
	return img.doors[i].Service, name
}
