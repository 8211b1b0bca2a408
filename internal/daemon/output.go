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
	// maxQueued bounds the bytes that wait for a reader: some thousand lines.
	maxQueued = 1 << 20
	// flushTime bounds the wait of a process that ends for its last lines.
	flushTime = time.Second
)

// Stderr is the standard error of this process and of its children. A write never waits: if nothing reads, as when
// containerd hangs, lines are dropped. Everything that logs would hang otherwise, and so the process.
var Stderr = newOutput(os.Stderr)

// Output passes on what is written to it to a writer that may block.
type Output struct {
	to io.Writer
	// start starts the goroutine that writes.
	start func()

	mu sync.Mutex
	// queue waits to be written, and dropped counts the writes that found it full since then.
	queue   bytes.Buffer
	dropped int
	// wake has an item if there is something to write; idle is closed while there is nothing.
	wake chan struct{}
	idle chan struct{}
	// all counts the writes that were dropped.
	all atomic.Uint64
}

func newOutput(to io.Writer) *Output {
	o := &Output{to: to, wake: make(chan struct{}, 1), idle: make(chan struct{})}
	close(o.idle)
	o.start = sync.OnceFunc(func() { go o.run() })
	return o
}

// Write implements io.Writer. It never fails or waits; one call is one line, as log handlers write them.
func (o *Output) Write(line []byte) (int, error) {
	o.start()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.queue.Len()+len(line) > maxQueued {
		o.dropped++
		o.all.Add(1)
		return len(line), nil
	}
	o.queue.Write(line)
	select {
	case o.wake <- struct{}{}:
		if isClosed(o.idle) {
			o.idle = make(chan struct{})
		}
	default:
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

// run writes what is queued. It never ends.
func (o *Output) run() {
	for range o.wake {
		if lines := o.take(); len(lines) > 0 {
			_, _ = o.to.Write(lines) // there is nowhere to report an error to
		}
		o.mu.Lock()
		if len(o.wake) == 0 {
			close(o.idle)
		}
		o.mu.Unlock()
	}
}

// take empties the queue. What was dropped came after it.
func (o *Output) take() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dropped > 0 {
		slog.New(slog.NewJSONHandler(&o.queue, nil)).
			Warn("log lines were dropped, because nothing read them", "lines", o.dropped)
		o.dropped = 0
	}
	out := bytes.Clone(o.queue.Bytes())
	o.queue = bytes.Buffer{}
	return out
}

// Flush waits until everything is written, for a second at most.
func (o *Output) Flush() {
	o.mu.Lock()
	idle := o.idle
	o.mu.Unlock()
	select {
	case <-idle:
	case <-time.After(flushTime):
	}
}

// Dropped returns a metric of the lines that were dropped.
func (o *Output) Dropped() prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "holdfast_log_lines_dropped_total", Help: "Lines that did not reach the log, because nothing read it.",
	}, func() float64 { return float64(o.all.Load()) })
}
