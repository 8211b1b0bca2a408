package members

import (
	"bytes"
	"context"
	"log/slog"
	"time"
)

// logWriter passes memberlist's log on to slog, one level lower: a failed probe of a dead node
// is ordinary work, and events logs joins and leaves. It is not safe for concurrent use.
type logWriter struct {
	log *slog.Logger
	// since is when the window of lines at the level of information began, and lines how many it has.
	since time.Time
	lines int
}

// mostLines in a window are logged at the level of information, the rest below: each packet of a stranger is a line.
const (
	mostLines = 10
	window    = 10 * time.Second
)

// Write never fails.
func (w *logWriter) Write(line []byte) (int, error) {
	mark, text, _ := bytes.Cut(line, []byte("]"))
	level := slog.LevelDebug
	if string(mark) == "[ERR" && w.admit() {
		level = slog.LevelInfo
	}
	w.log.Log(context.Background(), level, string(bytes.TrimSpace(text)))
	return len(line), nil
}

// admit reports whether one more line fits into the window.
func (w *logWriter) admit() bool {
	if time.Since(w.since) > window {
		w.since, w.lines = time.Now(), 0
	}
	w.lines++
	return w.lines <= mostLines
}
