package layer2

import (
	"context"
	"io"
	"iter"
	"log/slog"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/nstest"
	"golang.org/x/net/bpf"
)

// fakeConn is a wire to a test, which provides the frames to read and gets the frames written.
type fakeConn struct {
	in, out chan []byte
	closed  chan struct{}
	once    sync.Once
	// stuck: the link takes no frames.
	stuck *atomic.Bool
	// filters are the programs set.
	filters [][]bpf.Instruction
}

// Read implements wire.
func (w *fakeConn) Read(b []byte) (int, error) {
	select {
	case f := <-w.in:
		return copy(b, f), nil
	case <-w.closed:
		return 0, io.EOF
	}
}

// Write implements wire.
func (w *fakeConn) Write(b []byte) (int, error) {
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

// TryWrite implements wire.
func (w *fakeConn) TryWrite(b []byte) (bool, error) {
	if w.stuck.Load() {
		return false, nil
	}
	n, err := w.Write(b)
	return n > 0, err
}

// SetFilter implements wire: everything passes, and the reader drops the rest.
func (w *fakeConn) SetFilter(program []bpf.Instruction) error {
	_, err := bpf.Assemble(program)
	w.filters = append(w.filters, program)
	return err
}

// Close implements wire.
func (w *fakeConn) Close() error {
	w.once.Do(func() { close(w.closed) })
	return nil
}

// fakeLAN is a node's links, whose connections end in the test.
type fakeLAN struct {
	mu    sync.Mutex
	links []lb.Interface
	conns map[string]*fakeConn
	// out is all frames sent, on any link.
	out chan []byte
	// fail makes opening fail on a link, by name. dead makes connections fail as soon as they are open.
	fail map[string]error
	dead bool
	// opened counts connections.
	opened int
	// stuck makes eth0 take no frames.
	stuck atomic.Bool
}

func newFakeLAN(links ...lb.Interface) *fakeLAN {
	return &fakeLAN{links: links, conns: make(map[string]*fakeConn), out: make(chan []byte, 1<<16)}
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

// frames returns the frames that are sent within a time, each as it is sent.
func (l *fakeLAN) frames(d time.Duration) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for end := time.After(d); ; {
			select {
			case f := <-l.out:
				if !yield(f) {
					return
				}
			case <-end:
				return
			}
		}
	}
}

func (l *fakeLAN) listen(on lb.Interface, p protocol) (frameConn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fail[on.Name]; err != nil {
		return nil, err
	}
	w := &fakeConn{in: make(chan []byte), out: l.out, closed: make(chan struct{})}
	if w.stuck = new(atomic.Bool); on.Name == "eth0" {
		w.stuck = &l.stuck
	}
	if l.dead {
		w.Close()
	}
	l.conns[on.Name+" "+p.name] = w
	l.opened++
	return w, nil
}

// conn returns the open connection of a link and protocol, nil for none.
func (l *fakeLAN) conn(name string, p protocol) *fakeConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.conns[name+" "+p.name]
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

// quietResponder returns a Responder that neither logs nor knows gateways. It reports changes only if that is set.
func quietResponder(c Config, s system) *Responder {
	c.Log, c.Gateways = slog.New(slog.DiscardHandler), func(int) []lb.Neighbour { return nil }
	for _, f := range []*func(){&c.Changed, &c.Refused} {
		if *f == nil {
			*f = func() {}
		}
	}
	return newResponder(c, s)
}

// responder returns a Responder whose links are the LAN's.
func (l *fakeLAN) responder() *Responder {
	return quietResponder(Config{Links: l.snapshot}, l.system())
}

// system connects a Responder to this LAN. Random durations are the shortest.
func (l *fakeLAN) system() system {
	return system{
		clock:  time.Now,
		random: func(shortest, _ time.Duration) time.Duration { return shortest },
		listen: l.listen,
		groups: newFakeKernel(),
	}
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

// transcript returns all that a Responder sends, with the phases of its addresses, while
// the wall clock jumps by the given time again and again.
func transcript(t *testing.T, by time.Duration) (out []string) {
	reading := time.Now() // the clock of a bubble has no monotonic reading
	synctest.Test(t, func(t *testing.T) {
		const refresh = 30 * time.Second
		var set atomic.Int64
		p := &play{t: t, lan: newFakeLAN(eth0)}
		began := time.Now()
		s := p.lan.system()
		s.clock = func() time.Time { return nstest.SetClock(reading.Add(time.Since(began)), time.Duration(set.Load())) }
		timers := Timers{RefreshMin: refresh, RefreshMax: refresh}
		p.Responder = quietResponder(Config{Links: p.lan.snapshot, Timers: timers}, s)
		defer run(t, p.Responder)()
		goesOn := func(what string, spans ...time.Duration) {
			for _, span := range spans {
				out = append(out, what)
				out = append(out, sentFor(p.lan, span)...)
				set.Add(int64(by))
				synctest.Wait()
				out = append(out, p.phases())
			}
		}
		ours := Desired{Announcements: announcing([]lb.Announcement{{Address: v4, Probe: true}}), Speakers: speakers}
		p.Set(ours)
		goesOn("asked for", 80*time.Millisecond)
		p.put(claim4(otherMAC))
		goesOn("another machine has it", 5*time.Second, 4900*time.Millisecond)
		goesOn("free again", 120*time.Millisecond, 80*time.Millisecond)
		goesOn("announced", 400*time.Millisecond, 2*time.Second)
		goesOn("refreshed", 20*time.Second, 20*time.Second)
		for range 12 {
			p.lan.conn("eth0", p.protocols[0]).in <- claim4(otherMAC)
			goesOn("claimed by another", time.Second)
		}
		goesOn("not claimed any more", 20*time.Second, 45*time.Second)
		p.Set(Desired{Yield: lb.SetOf(v4), Speakers: speakers})
		goesOn("handed over", time.Second, 900*time.Millisecond, 200*time.Millisecond)
	})
	return out
}

// TestWallClockIsSet: jumps of an hour, forward and back, in every phase have no effect on
// probes, announcements, the pause after a conflict, the pace of defences, the slow
// refresh or the handover.
func TestWallClockIsSet(t *testing.T) {
	want := transcript(t, 0)
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		if diff := cmp.Diff(want, transcript(t, by)); diff != "" {
			t.Errorf("set by %v (-want +got):\n%s", by, diff)
		}
	}
}

// TestTimers: every timer has a default, and a configured value stays.
func TestTimers(t *testing.T) {
	var set Timers
	v := reflect.ValueOf(&set).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i).Addr().Interface().(type) {
		case *[]time.Duration:
			*f = []time.Duration{time.Duration(i + 1)}
		case *time.Duration:
			*f = time.Duration(i + 1)
		case *int:
			*f = i + 1
		}
	}
	if got := set.withDefaults(); !reflect.DeepEqual(got, set) {
		t.Errorf("what was set, %+v, became %+v", set, got)
	}
	defaults := reflect.ValueOf(Timers{}.withDefaults())
	for i := range defaults.NumField() {
		if defaults.Field(i).IsZero() {
			t.Errorf("%s has no default", defaults.Type().Field(i).Name)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// announcing returns announcements by address.
func announcing(list []lb.Announcement) lb.Map[netip.Addr, *lb.Announcement] {
	out := map[netip.Addr]*lb.Announcement{}
	for _, a := range list {
		out[a.Address] = &a
	}
	return lb.MapOf(out)
}
