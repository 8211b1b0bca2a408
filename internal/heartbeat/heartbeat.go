package heartbeat

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
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
	// Keys of 16 octets or more. All are accepted, and packets are sent with the first.
	Keys [][]byte
	Timers
	// Ordinary leaves the process of Command without real-time priority.
	Ordinary bool
	// Command starts a process that does nothing but call Serve, and runs the detector. Without one the
	// detector runs on a thread of this process, and shares its pauses and its priority.
	Command []string
	// Changed is called when the View changes. It must not block.
	Changed func()
	// Ask asks the wire whether a peer that fell silent still answers for what it announces. It is called on a
	// goroutine of its own, and its answer counts if it comes within 40 ms. nil asks nobody.
	Ask func(name string) Answer
	// Guest, unless nil, is called with a connection to the Guest of each heartbeat process, and returns when that has ended.
	Guest func(net.Conn)
}

// Peer is another node, as membership knows it.
type Peer struct {
	Name    string
	Address netip.Addr
	// Gossip takes it for alive.
	Gossip bool
}

// View is what is known at one moment.
type View struct {
	// Members are all peers and this node itself.
	Members []Member
	// Epoch counts the times that this node did not run for so long that it may have been declared dead.
	Epoch uint64
	// Settled: it has run since for long enough to have heard of that.
	Settled bool
	// Realtime: the thread has real-time priority.
	Realtime bool
	// Alone: this node hears no other speaker, even if some still count as alive. HearsBadly: it hears them badly,
	// and is itself at fault.
	Alone, HearsBadly bool
	// LinkFails: when the wire was asked last, this node's own link did not work.
	LinkFails bool
}

func (v *View) equal(o *View) bool {
	return v.Epoch == o.Epoch && v.Settled == o.Settled && v.Realtime == o.Realtime &&
		v.Alone == o.Alone && v.HearsBadly == o.HearsBadly && v.LinkFails == o.LinkFails && slices.Equal(v.Members, o.Members)
}

// Heartbeat sends heartbeats, listens to those of others, and judges.
type Heartbeat struct {
	Lease
	config  Config
	peers   atomic.Pointer[[]Peer]
	seals   atomic.Pointer[[]*seal]
	answers chan wireAnswer
	changed chan struct{}
	asks    chan question
	// forward hands a question to the speaker's process, whose answer comes as an order.
	forward func(question)
	stopped atomic.Bool
	view    atomic.Pointer[View]
	shared  *shared
	// memory is the file that shared is mapped from; nil without a Command.
	memory *os.File
	// budget is nil without real-time priority.
	budget *budget

	// mu guards socket and child, of which one is set while Run runs; the thread does not take it.
	mu     sync.Mutex
	socket *socket
	child  *process
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
	peers = append([]Peer{}, peers...) // not nil: an order without peers says nothing about them
	h.peers.Store(&peers)
	h.pass(order{Peers: &peers})
}

// SetKeys replaces the keys. All are accepted, and packets are sent with the first.
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

// maxWireQuestions bounds the questions on the wire that are under way at once.
const maxWireQuestions = 64

// wireAnswer is the answer to a question.
type wireAnswer struct {
	Question question
	Answer   Answer
}

// answered hands the wire's answer to the detector.
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

// Confirm says that a plan that was made from v is carried out.
// Only then does the Lease hold again after a lapse.
func (h *Heartbeat) Confirm(v View) {
	if v.Settled {
		h.confirm(v.Epoch)
	}
}

// pass hands what was just stored to the thread or to the heartbeat process. mu is held.
func (h *Heartbeat) pass(o order) {
	switch {
	case h.socket != nil:
		h.socket.event.Wake()
	case h.child != nil:
		h.child.send(o)
	}
}

// Run takes part until ctx is cancelled, then says goodbye and returns nil. It
// returns an error when it cannot listen.
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
	s.event.Wake()
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

// dispatch does what the thread must not: it calls, logs and waits.
func (h *Heartbeat) dispatch(ctx context.Context) {
	var logged View
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
			default: // others ask about so many, too
			}
		case <-h.changed:
			view := h.View()
			h.logChanges(logged, view)
			logged = view
			h.config.Changed()
		}
	}
}

// ask hands a question to dispatch.
func (h *Heartbeat) ask(q question) {
	select {
	case h.asks <- q:
	default: // many fell silent at once: it is not necessary to ask about each
	}
}

func (h *Heartbeat) publish(v *View) {
	h.view.Store(v)
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// logChanges logs each change once.
func (h *Heartbeat) logChanges(before, now View) {
	log := h.config.Log
	if before.Members == nil && !now.Realtime && h.shared.restarts.Load() == 0 {
		log.Warn("heartbeats run without real-time priority, so that failover is slower: give the speaker SYS_NICE",
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
