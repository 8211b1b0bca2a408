package heartbeat

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
)

// Config of a Heartbeat.
type Config struct {
	Log *slog.Logger
	// NodeName of this node, and the Address that others know it by.
	NodeName string
	Address  netip.Addr
	// Port for UDP, the same on all nodes.
	Port uint16
	// Keys that are accepted, 16 octets or more; the first is sent with.
	Keys [][]byte
	Timers
	// Ordinary leaves the process of Command at the priority of others.
	Ordinary bool
	// Command starts a process that does nothing but call Serve: the detector is left to it. Empty
	// is a thread of this process, which shares its pauses and its priority.
	Command []string
	// Changed is called when the View changes. It must not block.
	Changed func()
	// Ask is called when a peer falls silent, so that the wire is asked whether it holds what it announces:
	// on a goroutine of its own. What it returns counts if it comes within 40 ms. nil asks nobody.
	Ask func(name string) Answer
}

// Peer is another node, as membership knows it.
type Peer struct {
	Name    string
	Address netip.Addr
	// Gossip thinks that it is alive.
	Gossip bool
}

// View is what is known at one moment.
type View struct {
	// Members are all peers and this node itself.
	Members []Member
	// Epoch counts the times this node did not run for so long that it may have been called dead.
	Epoch uint64
	// Settled: it has run since for long enough to have been told.
	Settled bool
	// Realtime: the thread has real-time priority.
	Realtime bool
	// Alone: this node hears no other speaker, whatever it still counts as alive. Deaf: it hears them badly, by its
	// own fault.
	Alone, HearsBadly bool
}

func (v *View) equal(o *View) bool {
	return v.Epoch == o.Epoch && v.Settled == o.Settled && v.Realtime == o.Realtime && v.Alone == o.Alone && v.HearsBadly == o.HearsBadly && slices.Equal(v.Members, o.Members)
}

// Heartbeat sends beats, listens to those of others, and judges.
type Heartbeat struct {
	Lease
	config  Config
	peers   atomic.Pointer[[]Peer]
	seals   atomic.Pointer[[]*seal]
	answers chan wireAnswer
	changed    chan struct{}
	asks    chan question
	// forward hands a question to the speaker's process, whose answer comes as an order.
	forward func(question)
	stopped atomic.Bool
	view    atomic.Pointer[View]
	shared  *shared
	// memory is the file that shared is mapped from; nil without a Command.
	memory *os.File
	// budget is nil where there is no real-time priority to have.
	budget *budget

	// mu guards socket and apart, of which one is there while Run runs; the thread does not take it.
	mu     sync.Mutex
	socket *socket
	child  *child
}

// New returns a Heartbeat that Run starts. It returns an error for a Config without a usable key.
func New(c Config) (*Heartbeat, error) {
	if len(c.Command) == 0 {
		return newHeartbeat(c, &shared{})
	}
	s, memory, err := newShared()
	if err != nil {
		return nil, err
	}
	h, err := newHeartbeat(c, s)
	if err != nil {
		return nil, errors.Join(err, memory.Close())
	}
	h.memory = memory
	return h, nil
}

func newHeartbeat(c Config, s *shared) (*Heartbeat, error) {
	c.Timers = c.withDefaults()
	h := &Heartbeat{
		Lease:  Lease{&s.lease, fastMonotonic()},
		config: c, answers: make(chan wireAnswer, 64), changed: make(chan struct{}, 1), asks: make(chan question, 64), shared: s,
	}
	h.view.Store(&View{})
	h.peers.Store(&[]Peer{})
	return h, h.SetKeys(c.Keys)
}

// Set makes these the peers; this node may be among them.
func (h *Heartbeat) Set(peers []Peer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.Equal(peers, *h.peers.Load()) {
		return
	}
	peers = append([]Peer{}, peers...) // not nil, which an order cannot tell from nothing
	h.peers.Store(&peers)
	h.pass(order{Peers: &peers})
}

// SetKeys replaces the keys; the first is sent with, all are accepted.
func (h *Heartbeat) SetKeys(keys [][]byte) error {
	if len(keys) == 0 {
		return errors.New("no key")
	}
	var seals []*seal
	for _, k := range keys {
		if len(k) < 16 {
			return fmt.Errorf("a key of %d octets is too short, want 16 at least", len(k))
		}
		s, err := newSeal(k)
		if err != nil {
			return err
		}
		seals = append(seals, s)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.config.Keys = keys
	h.seals.Store(&seals)
	h.pass(order{Keys: keys})
	return nil
}

// mostAsking bounds the questions on the wire that are under way at once.
const maxWireQuestions = 64

// wireAnswer is what came of a question.
type wireAnswer struct {
	Question question
	Answer   Answer
}

// answered hands on what the wire said.
func (h *Heartbeat) answered(a wireAnswer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.child == nil && len(h.config.Command) == 0 {
		select {
		case h.answers <- a:
		default: // full of others; it will be asked again
			return
		}
	}
	h.pass(order{Answer: &a})
}

// View returns what is known now. It is shared: do not modify it.
func (h *Heartbeat) View() View { return *h.view.Load() }

// Confirm says that everything is done as a plan demands that was made from v.
// Only then does the Lease hold again after a lapse.
func (h *Heartbeat) Confirm(v View) {
	if v.Settled {
		h.confirm(v.Epoch)
	}
}

// pass brings what was just stored to whom it concerns. mu is held.
func (h *Heartbeat) pass(o order) {
	switch {
	case h.socket != nil:
		h.socket.wake()
	case h.child != nil:
		h.child.send(o)
	}
}

// Run takes part until ctx is cancelled, then says goodbye and returns nil. It
// returns an error when it cannot listen, or the process that does has ended.
func (h *Heartbeat) Run(ctx context.Context) error {
	if len(h.config.Command) > 0 {
		return h.runChild(ctx)
	}
	s, err := openSocket(netip.AddrPortFrom(h.config.Address, h.config.Port))
	if err != nil {
		return fmt.Errorf("start heartbeats: %w", err)
	}
	h.use(s)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		newThread(h, s).run()
	}()
	h.dispatch(ctx)
	h.stopped.Store(true)
	s.wake()
	<-ended
	h.use(nil)
	s.close()
	return nil
}

func (h *Heartbeat) use(s *socket) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.socket = s
}

// attend does what the thread must not: it calls, logs and waits.
func (h *Heartbeat) dispatch(ctx context.Context) {
	var said View
	asking := make(chan struct{}, maxWireQuestions)
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-h.asks:
			if h.forward != nil {
				h.forward(q)
			}
			if h.config.Ask == nil {
				continue
			}
			select {
			case asking <- struct{}{}:
				go func() {
					h.answered(wireAnswer{q, h.config.Ask(q.Name)})
					<-asking
				}()
			default: // so many at once are asked about by others, too
			}
		case <-h.changed:
			view := h.View()
			h.logChanges(said, view)
			said = view
			h.config.Changed()
		}
	}
}

// say logs each change once.
func (h *Heartbeat) logChanges(before, now View) {
	log := h.config.Log
	if before.Members == nil && !now.Realtime && h.shared.restarts.Load() == 0 {
		log.Warn("heartbeats run without real-time priority and allow for longer silences: give the speaker SYS_NICE",
			"hold", h.config.hold(false))
	}
	if now.Epoch > max(before.Epoch, 1) {
		log.Warn("this node did not run for a while: ARP and NDP replies are suspended until the next plan")
	}
	was := map[string]Member{}
	for _, m := range before.Members {
		was[m.Name] = m
	}
	for _, m := range now.Members {
		o, known := was[m.Name]
		if o.Status == m.Status && o.Blocked == m.Blocked || !known && m.Status == Unknown {
			continue
		}
		log.Info("member", "member", m.Name, "status", m.Status.String(), "blocked", m.Blocked, "deaths", m.Deaths)
	}
}

// random returns an unguessable number that is not 0.
func random() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails: crypto/rand
	return max(binary.NativeEndian.Uint64(b[:]), 1)
}
