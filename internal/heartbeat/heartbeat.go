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
	// NodeName is this node's name, and Address the address that other nodes have for it.
	NodeName string
	Address  netip.Addr
	// Port is the UDP port, the same on all nodes.
	Port uint16
	// Keys, one or more. All are accepted, and packets are sent with the first.
	Keys [][]byte
	detect.Timers
	// Ordinary leaves the process of Command without real-time priority.
	Ordinary bool
	// Command starts a process that does nothing but call Serve.
	Command []string
	// Stderr gets what that process writes to its standard error: the stacks of a crash or a hang. It must not block.
	Stderr io.Writer
	// Changed is called when the View changes. It must not block.
	Changed func()
	// Ask asks the wire whether a silent peer still answers for the addresses that it announces. It is called on a
	// goroutine of its own, and its answer counts if it comes within 40 ms.
	Ask func(name string) detect.WireAnswer
	// Guest is called with a connection to the Guest of each heartbeat process, and returns when that has ended.
	Guest func(net.Conn)
}

// Peer is another node, as the membership lists it, with the address that heartbeats to it go to.
type Peer struct {
	Name    string
	Address netip.Addr
	// Gossip reports whether gossip considers it alive.
	Gossip bool
}

// maxWireQuestions bounds the questions on the wire that are under way at once.
const maxWireQuestions = 64

// Heartbeat is the speaker's side. It starts the heartbeat process, again when that ends, and has what the process
// publishes.
type Heartbeat struct {
	*Lease
	config Config
	view   atomic.Pointer[detect.NodeSets]
	shared *sharedState
	// memory is the file that shared is mapped from.
	memory *os.File
	// asking has the questions on the wire that are under way.
	asking errgroup.Group

	// mu guards what the process gets by orders, and the process, which is nil while none runs.
	mu    sync.Mutex
	peers []Peer
	links []Link
	keys  [][]byte
	child *child.Process
}

// New returns a Heartbeat that Run starts.
func New(c Config) (*Heartbeat, error) {
	c.Timers = c.WithDefaults()
	s, memory, err := newSharedState()
	if err != nil {
		return nil, err
	}

	h := &Heartbeat{
		Lease:  &s.lease,
		config: c,
		shared: s,
		memory: memory,
		peers:  []Peer{},
		links:  []Link{},
		keys:   c.Keys,
	}
	h.asking.SetLimit(maxWireQuestions)
	h.view.Store(new(detect.View{}.Sets()))

	return h, nil
}

// Set sets the nodes that exist; this node may be among them.
func (h *Heartbeat) Set(peers []Peer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.Equal(peers, h.peers) {
		return
	}
	h.peers = append([]Peer{}, peers...) // not nil: an order without peers leaves them as they are
	h.sendOrder(order{Peers: h.peers})
}

// SetLinks sets the interfaces on which this node sends heartbeats too, by frames.
func (h *Heartbeat) SetLinks(links []Link) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.Equal(links, h.links) {
		return
	}
	h.links = append([]Link{}, links...) // not nil, as in Set
	h.sendOrder(order{Links: h.links})
}

// SetKeys replaces the keys. All are accepted, and packets are sent with the first.
func (h *Heartbeat) SetKeys(keys [][]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keys = keys
	h.sendOrder(order{Keys: keys})
}

// View returns the last View. It is shared: do not modify it.
func (h *Heartbeat) View() detect.NodeSets { return *h.view.Load() }

// HearsSome reports whether this node hears another speaker well at this moment. It is true only while the Lease is
// valid.
func (h *Heartbeat) HearsSome() bool { return h.Valid() && h.shared.hearsSome.Load() }

// Confirm notes that a plan made from a View is carried out. After a lapse the Lease is not valid until then.
func (h *Heartbeat) Confirm(v detect.NodeSets) {
	if v.Settled {
		h.confirmed.Store(v.Epoch)
	}
}

// ask asks the wire, and passes its answer to the heartbeat process.
func (h *Heartbeat) ask(q detect.WireQuestion) {
	h.asking.TryGo(func() error { // where many nodes are silent, it is not necessary to ask about each
		a := answeredQuestion{q, h.config.Ask(q.Name)}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.sendOrder(order{Answer: &a})
		return nil
	})
}

// logChanges logs each change once.
func (h *Heartbeat) logChanges(before, after detect.View) {
	log := h.config.Log
	if before.Members == nil && !after.Realtime && h.shared.restarts.Load() == 0 {
		log.Warn("heartbeats run without real-time priority, so that failover is slower: give the speaker SYS_NICE",
			"hold", h.config.Hold(false))
	}
	if after.Epoch > max(before.Epoch, 1) {
		log.Warn("this node did not run for a while: ARP and NDP replies are suspended until the next plan")
	}

	former := map[string]detect.Member{}
	for _, m := range before.Members {
		former[m.Name] = m
	}
	for _, m := range after.Members {
		old, known := former[m.Name]
		isSame := old.Status == m.Status && old.Blocked == m.Blocked
		if isSame || !known && m.Status == detect.Unknown {
			continue
		}
		log.Info("member", "member", m.Name, "status", m.Status.String(), "blocked", m.Blocked, "deaths", m.Deaths)
	}
}
