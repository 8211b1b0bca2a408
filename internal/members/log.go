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

var levels = []struct {
	mark  []byte
	level slog.Level
}{
	{[]byte("[ERR]"), slog.LevelInfo},
	{[]byte("[WARN]"), slog.LevelDebug},
	{[]byte("[INFO]"), slog.LevelDebug},
}

// Write never fails.
func (w *logWriter) Write(line []byte) (int, error) {
	for _, l := range levels {
		if _, text, found := bytes.Cut(line, l.mark); found {
			w.log.Log(context.Background(), w.lower(l.level), string(bytes.TrimSpace(text)))
			break
		}
	}
	return len(line), nil
}

func (w *logWriter) lower(level slog.Level) slog.Level {
	if level < slog.LevelInfo {
		return level
	}
	if time.Since(w.since) > window {
		w.since, w.lines = time.Now(), 0
	}
	if w.lines++; w.lines > mostLines {
		return slog.LevelDebug
	}
	return level
}
