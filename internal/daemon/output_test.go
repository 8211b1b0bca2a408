package daemon

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pipe is a log that blocks until full is closed.
type pipe struct {
	full    chan struct{}
	written bytes.Buffer
}

func (p *pipe) Write(b []byte) (int, error) {
	<-p.full
	return p.written.Write(b)
}

// TestOutput: while nothing reads, lines are queued up to a bound, then dropped, and no write blocks. Once something
// reads, the log has the oldest lines, the number of missing lines, and all later ones.
//
// Trap: containerd hangs, the pipe of the log is full after 64 KiB, and each goroutine hangs with its next line.
func TestOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipe{full: make(chan struct{})}
		o := newAsyncWriter(p)
		text := strings.Repeat("x", 1000)
		log := slog.New(slog.NewJSONHandler(o, nil))
		start := time.Now()
		for i := range 10_000 {
			log.Info(text, "line", i)
		}
		o.Flush()
		if waited := time.Since(start); waited != flushTime || o.queue.Len() > maxQueued {
			t.Errorf("waited for %v, %d bytes wait", waited, o.queue.Len())
		}

		close(p.full)
		synctest.Wait()
		log.Info("later")
		o.Flush()
		if time.Since(start) != flushTime {
			t.Error("it waits though all is written")
		}
		lines := strings.Split(strings.TrimSpace(p.written.String()), "\n")
		kept := len(lines) - 2
		for i, line := range lines[:kept] {
			if !strings.HasSuffix(line, fmt.Sprintf(`"line":%d}`, i)) {
				t.Fatalf("line %d is %s", i, line)
			}
		}
		report, last := lines[kept], lines[kept+1]
		if !strings.HasSuffix(report, fmt.Sprintf(`"lines":%d}`, 10_000-kept)) || !strings.Contains(last, "later") ||
			kept < 500 {
			t.Errorf("%d lines, then %s, then %s", kept, report, last)
		}
		if got := o.totalDropped.Load(); got != uint64(10_000-kept) {
			t.Errorf("%d are counted", got)
		}
		close(o.wake) // ends the goroutine
	})
}
