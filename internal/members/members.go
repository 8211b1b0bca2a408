// Package members knows which speakers are alive, by SWIM failure detection
// (hashicorp/memberlist) among the speakers themselves, so that it does not
// depend on the API server. It decides nothing about addresses.
package members

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/lb"
)

// joinsAtOnce bounds the connections that a first join opens side by side.
const joinsAtOnce = 16

// Config of the membership of one node.
type Config struct {
	Log *slog.Logger
	// NodeName is this member's name; it must be the Kubernetes node's.
	NodeName string
	// Address is where the other members reach this one.
	Address netip.Addr
	// Port for TCP and UDP.
	Port uint16
	// Key encrypts all traffic: 16, 24 or 32 bytes (AES-GCM).
	Key []byte
	// Kick is called after each change of the membership.
	Kick func()
	// JoinInterval between looks at the join list; default 1 s.
	JoinInterval time.Duration
}

// Members is this node's view of the living speakers.
type Members struct {
	config Config
	mu     sync.Mutex
	list   *memberlist.Memberlist
	join   []netip.Addr
	joined bool
	// meta is what this member tells, told what each member told last.
	meta []byte
	told map[string]lb.Member
	// addresses of the living members, as events told: memberlist changes its nodes while we would read them.
	addresses map[string]netip.Addr
}

// New returns Members that Run starts.
func New(c Config) *Members {
	if c.JoinInterval == 0 {
		c.JoinInterval = time.Second
	}
	return &Members{config: c, told: map[string]lb.Member{}, addresses: map[string]netip.Addr{}}
}

// SetJoin tells where other speakers may be found; the list may hold this node.
func (m *Members) SetJoin(addresses []netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.join = addresses
}

// Alive returns the names of the living members, this node included once Run has started.
func (m *Members) Alive() map[string]bool {
	alive := map[string]bool{}
	if list := m.running(); list != nil {
		for _, node := range list.Members() {
			alive[node.Name] = true
		}
	}
	return alive
}

// Joined reports whether every address of a join list has been tried once. Before
// that this node knows only itself, and would take every address for its own.
func (m *Members) Joined() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.joined
}

// Run takes part in the membership until ctx is cancelled, then says goodbye
// so that the others need not suspect this node first, and returns nil. It
// returns an error when it cannot listen or the key has a wrong length.
func (m *Members) Run(ctx context.Context) error {
	list, err := memberlist.Create(m.memberlistConfig())
	if err != nil {
		return fmt.Errorf("start membership on port %d: %w", m.config.Port, err)
	}
	m.mu.Lock()
	m.list = list
	m.mu.Unlock()
	m.config.Kick()

	tick := time.NewTicker(m.config.JoinInterval)
	defer tick.Stop()
	for {
		m.joinMissing(list)
		select {
		case <-ctx.Done():
			return m.leave(list)
		case <-tick.C:
		}
	}
}

func (m *Members) running() *memberlist.Memberlist {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.list
}

// leave waits until the goodbye has been sent or a second has passed.
func (m *Members) leave(list *memberlist.Memberlist) error {
	if err := list.Leave(time.Second); err != nil {
		m.config.Log.Warn("members did not hear our goodbye, they will suspect us first", "error", err)
	}
	return list.Shutdown()
}

// joinMissing contacts each address of the join list that no living member has:
// a new speaker's, or one beyond a healed partition, which memberlist alone would
// take up to GossipToTheDeadTime to find again.
func (m *Members) joinMissing(list *memberlist.Memberlist) {
	known := map[netip.Addr]bool{}
	m.mu.Lock()
	for _, a := range m.addresses {
		known[a] = true
	}
	join, first := m.join, !m.joined
	m.mu.Unlock()
	var group errgroup.Group
	group.SetLimit(joinsAtOnce)
	for _, a := range join {
		if known[a] {
			continue
		}
		group.Go(func() error {
			// A failed join is the ordinary case of a dead node; memberlist says so in its log.
			_, _ = list.Join([]string{net.JoinHostPort(a.String(), strconv.Itoa(int(m.config.Port)))})
			return nil
		})
	}
	_ = group.Wait()
	if first && len(join) > 0 {
		m.mu.Lock()
		m.joined = true
		m.mu.Unlock()
		m.config.Kick()
	}
}

// memberlistConfig is memberlist's LAN profile with faster probes: a dead
// speaker is known after about 1.6 s (one probe of 300 ms, then a suspicion of
// SuspicionMult probe intervals), while Lifeguard stretches both on a busy node.
func (m *Members) memberlistConfig() *memberlist.Config {
	c := memberlist.DefaultLANConfig()
	c.Name = m.config.NodeName
	c.BindAddr = m.config.Address.String()
	c.BindPort = int(m.config.Port)
	c.AdvertiseAddr = m.config.Address.String()
	c.AdvertisePort = int(m.config.Port)
	c.SecretKey = m.config.Key
	// The label keeps another membership on the same port (MetalLB's, say) from merging with ours.
	c.Label = "holdfast"
	c.ProbeInterval = 300 * time.Millisecond
	c.ProbeTimeout = 150 * time.Millisecond
	c.SuspicionMult = 4
	c.GossipInterval = 50 * time.Millisecond
	c.TCPTimeout = time.Second
	// A node that comes back with another address (a new NIC) may take its name over at once.
	c.DeadNodeReclaimTime = time.Second
	c.Events = events{m}
	c.Delegate = delegate{m}
	c.LogOutput = logWriter{m.config.Log}
	return c
}

// events turns memberlist's notifications into kicks and log lines.
type events struct{ m *Members }

func (e events) NotifyJoin(n *memberlist.Node) {
	e.m.config.Log.Info("member joined", "member", n.Name, "address", n.Addr)
	e.m.hear(n)
	e.m.config.Kick()
}

func (e events) NotifyLeave(n *memberlist.Node) {
	e.m.forget(n)
	e.m.config.Log.Info("member left", "member", n.Name, "address", n.Addr)
	e.m.config.Kick()
}

func (e events) NotifyUpdate(n *memberlist.Node) {
	e.m.hear(n)
	e.m.config.Kick()
}
