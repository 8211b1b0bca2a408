package liveness

import (
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/lb"
)

// Config of a Monitor.
type Config struct {
	Log *slog.Logger
	// Node is this node, as Problems name it.
	Node lb.Object
	// MembersPort is a TCP port to ask kernels at, HeartbeatPort the UDP port of heartbeats.
	MembersPort, HeartbeatPort uint16
	Cluster                    Cluster
	// BootedAt is when this node booted: its links came up later.
	BootedAt time.Time
	// HearsSome reports whether this node hears another speaker well.
	HearsSome func() bool
	// Asker asks on Links.
	Asker Asker
	Links func() []lb.Interface
	// Changed is called when State changes, and SilenceChanged when Silence may have changed. KickProbe is called when
	// Probe has to run; a loop must run one Probe at a time. None of them may block.
	Changed, SilenceChanged, KickProbe func()
}

// Cluster is what the API server knows of the nodes.
type Cluster interface {
	// Kernels returns addresses of each node at which its kernel answers, whether a program listens there or not.
	Kernels(membersPort uint16) map[string][]netip.AddrPort
	// Vote reads what the speaker of a node wrote last. It returns an error that wraps ErrAway if nothing shows
	// that the network reaches the API server.
	Vote(ctx context.Context, node string) (Vote, error)
}

// Known is what is known of the speakers at one moment.
type Known struct {
	View detect.NodeSets
	// Members is the metadata of each speaker, by node.
	Members map[string]lb.Member
	// Speakers are the nodes that have a speaker, with its address. Address is this node's.
	Speakers map[string]netip.Addr
	Address  netip.Addr
	// Services have the nodes with endpoints that can serve.
	Services []*lb.Service
}

// State tells which nodes are alive, and which can be reached.
type State struct {
	// Alive, HeldDown and SpeakerDown are as lb.State has them. The nodes that this side of a partition yields to are
	// alive. No node on this side takes an address, unless those nodes refuse it.
	Alive, HeldDown, SpeakerDown map[string]bool
	// Left are nodes whose speakers said goodbye a short while ago.
	Left map[string]bool
	// HearsBadly, GivenUp, PathFails, CutOffFrom and Partition are as lb.Here has them.
	HearsBadly, GivenUp bool
	PathFails           bool
	CutOffFrom          map[string]bool
	Partition           lb.Partition
	// Again is how long until State changes without a call of Changed; 0 for never.
	Again time.Duration
	// Problems are about the network around this node.
	Problems []lb.Problem
}

// Monitor finds out what heartbeats alone cannot show.
type Monitor struct {
	*prober
	wire     *wireChecker
	links    *linkWatcher
	goodbyes goodbyes
}

// New returns a Monitor that Run starts.
func New(c Config) *Monitor { return newMonitor(c, time.Now) }

func newMonitor(c Config, clock func() time.Time) *Monitor {
	p := newProber(c)
	return &Monitor{
		prober:   p,
		wire:     newWireChecker(c, clock),
		links:    newLinkWatcher(c, p.lastKnown, clock),
		goodbyes: goodbyes{},
	}
}

// Set replaces what is known of the speakers.
func (m *Monitor) Set(k Known) {
	before := m.lastKnown().View.Links
	m.prober.set(time.Now(), k)
	if !slices.EqualFunc(before, k.View.Links, detect.LinkView.Equal) {
		m.links.kick()
	}
	m.config.SilenceChanged()
}

// SetOwners sets which node announces each address by layer 2: a node that falls silent is asked for its addresses.
func (m *Monitor) SetOwners(owners lb.Map[netip.Addr, string]) {
	m.mu.Lock()
	k := m.known
	heard := m.reach.heardNodes()
	m.mu.Unlock()

	maps.DeleteFunc(heard, func(node string, _ bool) bool { return node == m.reach.node || k.View.SpeakerDown[node] })
	m.wire.set(k.Members, heard, owners, k.Address)
	m.links.isIdle.Store(owners.Len() == 0)
}

// State returns which nodes are alive and can be reached, by what was set last.
func (m *Monitor) State() State {
	links := m.links.findings() // which takes mu itself
	m.mu.Lock()
	defer m.mu.Unlock()

	view := m.known.View
	s := State{
		Alive:       view.Alive,
		HeldDown:    view.HeldDown,
		SpeakerDown: view.SpeakerDown,
		HearsBadly:  view.HearsBadly,
		GivenUp:     view.GivenUp,
		PathFails:   view.PathFails,
	}
	s.Left, s.Again = m.goodbyes.departed(time.Now(), m.known.Members, view.Alive, view.Left)
	s.CutOffFrom = m.cutOffFrom()
	s.Partition = m.reader.partition
	s.yield()
	nodePath := linkOf(m.config.Links(), m.known.Address)
	s.Problems = networkProblems(m.config, view.Members, m.wire.withoutEcho(), nodePath, links)
	s.Problems = append(s.Problems, m.cutOffProblems()...)

	return s
}

// yield ranks the nodes that this side of a partition yields to before its own nodes. As on the other side, the former
// count as alive, and the latter as held down. A node of another side may count as alive here for some seconds, while
// it is only silent.
func (s *State) yield() {
	if len(s.Partition.YieldsTo) == 0 {
		return
	}

	s.HeldDown = maps.Clone(s.Alive)
	s.Alive = maps.Clone(s.Alive)
	for _, node := range s.Partition.YieldsTo {
		s.Alive[node] = true
		delete(s.HeldDown, node)
	}
}

// Hears reports whether this node hears another machine on the link of the heartbeats: see lb.Hearing.
func (m *Monitor) Hears() bool { return m.config.HearsSome() || m.wire.hearsForeign() }

// Ask asks the wire about a node that fell silent: see heartbeat.Config.
func (m *Monitor) Ask(node string) detect.WireAnswer { return m.wire.ask(node) }

// SilentLinks returns the names of links that this node leaves to other nodes: see linkWatcher.
func (m *Monitor) SilentLinks() map[string]bool { return m.links.Silent() }

// Run asks on the wire and on links until ctx ends. Probe is not part of it.
func (m *Monitor) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.wire.run(ctx) })
	group.Go(func() error { return m.links.Run(ctx) })
	return group.Wait()
}
