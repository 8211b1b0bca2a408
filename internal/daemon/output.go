package daemon

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxQueued bounds the bytes that wait to be written: some thousand lines.
	maxQueued = 1 << 20
	// flushTime bounds how long a process that ends waits until its last lines are written.
	flushTime = time.Second
)

// Stderr is the standard error of this process and of its children. A write never blocks: lines are dropped if nothing
// reads them, for instance while containerd hangs. Otherwise every goroutine that logs would hang too.
var Stderr = newAsyncWriter(os.Stderr)

// AsyncWriter copies lines to a writer that may block, without blocking itself.
type AsyncWriter struct {
	inner io.Writer
	// start starts the goroutine that writes to inner.
	start func()

	mu sync.Mutex
	// queue holds the lines that wait to be written.
	queue bytes.Buffer
	// dropped counts the lines that found the queue full since it was last taken.
	dropped int
	// wake holds an item if there is something to write.
	wake chan struct{}
	// idle is closed while there is nothing to write.
	idle chan struct{}

	// totalDropped counts all dropped lines.
	totalDropped atomic.Uint64
}

func newAsyncWriter(inner io.Writer) *AsyncWriter {
	w := &AsyncWriter{inner: inner, wake: make(chan struct{}, 1), idle: make(chan struct{})}
	close(w.idle)
	w.start = sync.OnceFunc(func() { go w.run() })
	return w
}

// Write implements io.Writer. It never fails and never blocks. Each call writes one line, as log handlers do.
func (w *AsyncWriter) Write(line []byte) (int, error) {
	w.start()

	w.mu.Lock()
	defer w.mu.Unlock()

	if w.queue.Len()+len(line) > maxQueued {
		w.dropped++
		w.totalDropped.Add(1)
		return len(line), nil
	}

	w.queue.Write(line)
	select {
	case w.wake <- struct{}{}:
		if isClosed(w.idle) {
			w.idle = make(chan struct{})
		}
	default: // run has been woken already
	}
	return len(line), nil
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// run writes queued lines to inner. It never returns.
func (w *AsyncWriter) run() {
	for range w.wake {
		lines := w.take()
		if len(lines) > 0 {
			_, _ = w.inner.Write(lines) // there is nowhere to report an error to
		}

		w.mu.Lock()
		if len(w.wake) == 0 {
			close(w.idle)
		}
		w.mu.Unlock()
	}
}

// take empties the queue. A line about dropped lines comes last, because they were newer than the queued ones.
func (w *AsyncWriter) take() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.dropped > 0 {
		log := slog.New(slog.NewJSONHandler(&w.queue, nil))
		log.Warn("log lines were dropped, because nothing read them", "lines", w.dropped)
		w.dropped = 0
	}

	lines := bytes.Clone(w.queue.Bytes())
	w.queue = bytes.Buffer{}
	return lines
}

// Flush waits until all lines are written, for flushTime at most.
func (w *AsyncWriter) Flush() {
	w.mu.Lock()
	idle := w.idle
	w.mu.Unlock()

	select {
	case <-idle:
	case <-time.After(flushTime):
	}
}

// Dropped returns a metric that counts the dropped lines.
func (w *AsyncWriter) Dropped() prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "holdfast_log_lines_dropped_total",
		Help: "Log lines that were dropped because nothing read the standard error.",
	}, func() float64 { return float64(w.totalDropped.Load()) })
}
