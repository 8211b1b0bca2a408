package engine

import (
	"context"
	"log/slog"

	"github.com/holdfast-lb/holdfast/internal/bgp/wire"
)

// logRelay sends messages to the speaker's log.
type logRelay struct {
	out   *wire.Writer[wire.Notice]
	debug bool
}

// Enabled implements slog.Handler.
func (h *logRelay) Enabled(_ context.Context, l slog.Level) bool {
	return h.debug || l > slog.LevelDebug
}

// Handle fails only when the speaker is gone, which shows elsewhere.
func (h *logRelay) Handle(_ context.Context, r slog.Record) error {
	line := &wire.Line{Level: r.Level, Message: r.Message}
	r.Attrs(func(a slog.Attr) bool {
		line.Attrs = append(line.Attrs, a.Key, a.Value.String())
		return true
	})
	return h.out.Write(wire.Notice{Log: line})
}

// WithAttrs and WithGroup are not used here.
func (h *logRelay) WithAttrs([]slog.Attr) slog.Handler { return h }

// WithGroup see WithAttrs.
func (h *logRelay) WithGroup(string) slog.Handler { return h }
