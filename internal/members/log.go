package members

import (
	"bytes"
	"context"
	"log/slog"

	"golang.org/x/time/rate"
)

// logWriter passes memberlist's log on to slog, one level lower: a failed probe of a dead node is ordinary work, and events logs joins
// and leaves. Beyond a limit its lines are lower still: each packet of a stranger is one.
type logWriter struct {
	log   *slog.Logger
	limit *rate.Limiter
}

func newLogWriter(log *slog.Logger) *logWriter { return &logWriter{log, rate.NewLimiter(1, 10)} }

// Write never fails.
func (w *logWriter) Write(line []byte) (int, error) {
	mark, text, _ := bytes.Cut(line, []byte("]"))
	level := slog.LevelDebug
	if string(mark) == "[ERR" && w.limit.Allow() {
		level = slog.LevelInfo
	}
	w.log.Log(context.Background(), level, string(bytes.TrimSpace(text)))
	return len(line), nil
}
