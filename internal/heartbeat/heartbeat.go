package heartbeat

import (
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/child"
	"github.com/holdfast-lb/holdfast/internal/detect"
)

// Config of a Heartbeat.
type Config struct {
	Log *slog.Logger
	// NodeName of this node, and the Address that others know it by.
	NodeName string
	Address  netip.Addr
	// Port for UDP, the same on all nodes.
	Port uint16
	// Keys, one or more. All are accepted, and packets are sent with the first.
	Keys [][]byte
	detect.Timers
	// Ordinary leaves the process of Command without real-time priority.
	Ordinary bool
	// Command starts a process that does nothing but call Serve, and runs the detector.
	Command []string
	// Stderr gets what the process writes to its standard error: the stacks of one that crashes or hangs. It must not
	// block.
	Stderr io.Writer
	// Changed is called when the View changes. It must not block.
	Changed func()
	// Ask asks the wire whether a peer that fell silent still answers for what it announces. It is called on a
	// goroutine of its own, and its answer counts if it comes within 40 ms.
	Ask func(name string) detect.WireAnswer
	// Guest is called with a connection to the Guest of each heartbeat process, and returns when that has ended.
	Guest func(net.Conn)
}

// Peer is another node, as membership knows it, with the address that its heartbeats go to.
type Peer struct {
	Name    string
	Address netip.Addr
	// Gossip takes it for alive.
	Gossip bool
}

// Heartbeat is the speaker's side: it starts the heartbeat process, again when that ends, and knows what the process
// tells.
type Heartbeat struct {
	*Lease
	config Config
	view   atomic.Pointer[detect.NodeSets]
	shared *shared
	// memory is the file that shared is mapped from.
	memory *os.File
	// asking has the questions on the wire that are under way.
	asking errgroup.Group

	// mu guards what the process gets by orders, and the process; nil while none runs.
	mu    sync.Mutex
	peers []Peer
	keys  [][]byte
	child *child.Process
}

// maxWireQuestions bounds the questions on the wire that are under way at once.
const maxWireQuestions = 64

// New returns a Heartbeat that Run starts.
func New(c Config) (*Heartbeat, error) {
	c.Timers = c.WithDefaults()
	s, memory, err := newShared()
	if err != nil {
		return nil, err
	}
	h := &Heartbeat{
		Lease: &s.lease, config: c, shared: s, memory: memory, peers: []Peer{}, keys: c.Keys,
	}
	h.asking.SetLimit(maxWireQuestions)
	h.view.Store(new(detect.View{}.Sets()))
	return h, nil
}

// Set makes these the peers; this node may be among them.
func (h *Heartbeat) Set(peers []Peer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.Equal(peers, h.peers) {
		return
	}
	h.peers = append([]Peer{}, peers...) // not nil: an order without peers says nothing about them
	h.pass(order{Peers: h.peers})
}

// SetKeys replaces the keys. All are accepted, and packets are sent with the first.
func (h *Heartbeat) SetKeys(keys [][]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys = keys
	h.pass(order{Keys: keys})
}

// View returns what is known now. It is shared: do not modify it.
func (h *Heartbeat) View() detect.NodeSets { return *h.view.Load() }

// HearsSome reports whether this node hears another speaker well at this moment. It is true only while the Lease is
// valid.
func (h *Heartbeat) HearsSome() bool { return h.Valid() && h.shared.hearsSome.Load() }

// Confirm says that a plan that was made from v is carried out.
// Only then does the Lease hold again after a lapse.
func (h *Heartbeat) Confirm(v detect.NodeSets) {
	if v.Settled {
		h.confirmed.Store(v.Epoch)
	}
}

// ask asks the wire, and passes its answer on.
func (h *Heartbeat) ask(q detect.WireQuestion) {
	h.asking.TryGo(func() error { // others ask about so many, too
		a := answeredQuestion{q, h.config.Ask(q.Name)}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.pass(order{Answer: &a})
		return nil
	})
}

// logChanges logs each change once.
func (h *Heartbeat) logChanges(before, now detect.View) {
	log := h.config.Log
	if before.Members == nil && !now.Realtime && h.shared.restarts.Load() == 0 {
		log.Warn("heartbeats run without real-time priority, so that failover is slower: give the speaker SYS_NICE",
			"hold", h.config.Hold(false))
	}
	if now.Epoch > max(before.Epoch, 1) {
		log.Warn("this node did not run for a while: ARP and NDP replies are suspended until the next plan")
	}
	was := map[string]detect.Member{}
	for _, m := range before.Members {
		was[m.Name] = m
	}
	for _, m := range now.Members {
		o, known := was[m.Name]
		if o.Status == m.Status && o.Blocked == m.Blocked || !known && m.Status == detect.Unknown {
			continue
		}
		log.Info("member", "member", m.Name, "status", m.Status.String(), "blocked", m.Blocked, "deaths", m.Deaths)
	}
}
