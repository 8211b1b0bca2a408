package members

import (
	"bytes"
	"context"
	"log/slog"
)

// logWriter passes memberlist's log on to slog, one level lower: a failed probe of a dead node
// is ordinary work, and events logs joins and leaves.
type logWriter struct{ log *slog.Logger }

var levels = []struct {
	mark  []byte
	level slog.Level
}{
	{[]byte("[ERR]"), slog.LevelInfo},
	{[]byte("[WARN]"), slog.LevelDebug},
	{[]byte("[INFO]"), slog.LevelDebug},
}

// Write never fails.
func (w logWriter) Write(line []byte) (int, error) {
	for _, l := range levels {
		if _, text, found := bytes.Cut(line, l.mark); found {
			w.log.Log(context.Background(), l.level, string(bytes.TrimSpace(text)))
			break
		}
	}
	return len(line), nil
}
