package layer2

import (
	"context"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/bpf"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// fakeWire is a wire to a test, which provides the frames to read and gets the frames written.
type fakeWire struct {
	in, out chan []byte
	closed  chan struct{}
	once    sync.Once
	// stuck: the link takes no frames.
	stuck *atomic.Bool
}

// Read implements wire.
func (w *fakeWire) Read(b []byte) (int, error) {
	select {
	case f := <-w.in:
		return copy(b, f), nil
	case <-w.closed:
		return 0, io.EOF
	}
}

// Write implements wire.
func (w *fakeWire) Write(b []byte) (int, error) {
	if w.stuck.Load() {
		time.Sleep(writeTimeout)
		return 0, os.ErrDeadlineExceeded
	}
	select {
	case w.out <- slices.Clone(b):
		return len(b), nil
	case <-w.closed:
		return 0, io.ErrClosedPipe
	}
}

// Offer implements wire.
func (w *fakeWire) Offer(b []byte) (bool, error) {
	if w.stuck.Load() {
		return false, nil
	}
	n, err := w.Write(b)
	return n > 0, err
}

// SetFilter implements wire: everything passes, and the reader drops the rest.
func (w *fakeWire) SetFilter(program []bpf.Instruction) error {
	_, err := bpf.Assemble(program)
	return err
}

// Close implements wire.
func (w *fakeWire) Close() error {
	w.once.Do(func() { close(w.closed) })
	return nil
}

// fakeLAN is a node's links, whose wires end in the test.
type fakeLAN struct {
	mu    sync.Mutex
	links []lb.Interface
	wires map[string]*fakeWire
	// out is all frames sent, on any link.
	out chan []byte
	// fail makes opening fail on a link, by name; dead wires fail as soon as they are open.
	fail map[string]error
	dead bool
	// opened counts wires.
	opened int
	// stuck makes eth0 take no frames.
	stuck atomic.Bool
}

func newFakeLAN(links ...lb.Interface) *fakeLAN {
	return &fakeLAN{links: links, wires: make(map[string]*fakeWire), out: make(chan []byte, 1<<16)}
}

// set replaces the links, like the kernel.
func (l *fakeLAN) set(links ...lb.Interface) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.links = links
}

func (l *fakeLAN) snapshot() []lb.Interface {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.links)
}

func (l *fakeLAN) listen(on lb.Interface, p protocol) (wire, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fail[on.Name]; err != nil {
		return nil, err
	}
	w := &fakeWire{in: make(chan []byte), out: l.out, closed: make(chan struct{})}
	if w.stuck = new(atomic.Bool); on.Name == "eth0" {
		w.stuck = &l.stuck
	}
	if l.dead {
		w.Close()
	}
	l.wires[on.Name+" "+p.name] = w
	l.opened++
	return w, nil
}

// wire returns the open wire of a link and family, nil for none.
func (l *fakeLAN) wire(name string, p protocol) *fakeWire {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.wires[name+" "+p.name]
	if w == nil {
		return nil
	}
	select {
	case <-w.closed:
		return nil
	default:
		return w
	}
}

// responder returns a Responder whose links are the LAN's.
func (l *fakeLAN) responder() *Responder {
	r := New(Config{Log: slog.New(slog.DiscardHandler), Links: l.snapshot})
	l.attach(r)
	return r
}

// attach connects a Responder to this LAN.
func (l *fakeLAN) attach(r *Responder) {
	k := newFakeKernel()
	r.listen, r.groups.kernel, r.groups.actual = l.listen, k, k.actual
	r.gateways = func(int) []lb.Neighbour { return nil }
	r.between = func(low, _ time.Duration) time.Duration { return low }
}

// run runs a Responder until stop is called.
func run(t testing.TB, r *Responder) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}
