package liveness

import (
	"context"
	"fmt"
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
	// Changed is called when State changes, SilenceChanged when Silence may have changed, KickProbe when Probe has to
	// run, of which a loop must run one at a time.
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
	// Members is the metadata of each; Speakers are the nodes that have one, Address is that of this one.
	Members  map[string]lb.Member
	Speakers map[string]netip.Addr
	Address  netip.Addr
	// Services have the nodes with endpoints that can serve.
	Services []*lb.Service
}

// State has which nodes live, and which can be reached.
type State struct {
	// Alive, HeldDown and SpeakerDown are as lb.State has them. The nodes that this side of a partition
	// yields to are alive, and nobody on this side takes anything but what those refuse.
	Alive, HeldDown, SpeakerDown map[string]bool
	// Left are nodes whose speakers said goodbye a short while ago.
	Left map[string]bool
	// HearsBadly, GivenUp, PathFails, CutOffFrom and Partition are as lb.Here has them.
	HearsBadly, GivenUp bool
	PathFails           bool
	CutOffFrom          map[string]bool
	Partition           lb.Partition
	// Again is when State changes though nobody calls Changed; 0 for never.
	Again time.Duration
	// Problems are those of the network around this node.
	Problems []lb.Problem
}

// Monitor finds out what heartbeats alone cannot show.
type Monitor struct {
	*prober
	wire     *wire
	links    *links
	goodbyes goodbyes
}

// New returns a Monitor that Run starts.
func New(c Config) *Monitor {
	m := &Monitor{prober: newProber(c), wire: newWire(c), goodbyes: goodbyes{}}
	m.links = newLinks(c, m.last)
	return m
}

// Set takes over what is known now.
func (m *Monitor) Set(k Known) {
	m.prober.set(time.Now(), k)
	m.config.SilenceChanged()
}

// SetOwners sets which node announces each address by layer 2: a node that falls silent is asked for these.
func (m *Monitor) SetOwners(owners lb.Map[netip.Addr, string]) {
	m.mu.Lock()
	k, heard := m.known, m.reach.audible()
	m.mu.Unlock()
	maps.DeleteFunc(heard, func(node string, _ bool) bool { return node == m.reach.node || k.View.SpeakerDown[node] })
	m.wire.set(k.Members, heard, owners, k.Address)
	m.links.idle.Store(owners.Len() == 0)
}

// State returns which nodes live now, by what was set last.
func (m *Monitor) State() State {
	links := m.links.find() // which takes mu itself
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
	s.Left, s.Again = m.goodbyes.left(time.Now(), m.known.Members, view.Alive, view.Left)
	var cutOff []lb.Problem
	s.CutOffFrom, s.Partition, cutOff = m.cutOff()
	s.yield()
	around := problems(m.config, view.Members, m.wire.withoutEcho(), links)
	s.Problems = append(around, cutOff...)
	return s
}

// yield ranks the nodes that this side of a partition yields to before its own: those count as alive, its own as held
// down, as they do on the other side. A node of another side may count as alive here for some seconds, while it is only
// silent.
func (s *State) yield() {
	if len(s.Partition.YieldsTo) == 0 {
		return
	}
	s.Alive, s.HeldDown = maps.Clone(s.Alive), maps.Clone(s.Alive)
	for _, node := range s.Partition.YieldsTo {
		s.Alive[node] = true
		delete(s.HeldDown, node)
	}
}

// Hears reports whether this node hears another machine on the link of the heartbeats: see lb.Hearing.
func (m *Monitor) Hears() bool { return m.config.HearsSome() || m.wire.hearsForeign() }

// Ask asks the wire about a node that fell silent: see heartbeat.Config.
func (m *Monitor) Ask(node string) detect.WireAnswer { return m.wire.ask(node) }

// SilentLinks returns the names of links that this node leaves to others: see links.
func (m *Monitor) SilentLinks() map[string]bool { return m.links.Silent() }

// Run runs all parts but Probe until ctx ends.
func (m *Monitor) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return m.wire.run(ctx) })
	group.Go(func() error { return m.links.Run(ctx) })
	return group.Wait()
}

// problems returns what a user must repair in the network around a node: heartbeats that do not arrive, and links that
// it leaves to others.
func problems(c Config, members []detect.Member, withoutEcho []string, links findings) []lb.Problem {
	node := c.Node
	var out []lb.Problem
	var blocked, gossipBlocked []string
	for _, m := range members {
		if m.Blocked {
			blocked = append(blocked, m.Name)
		}
		if m.GossipBlocked {
			gossipBlocked = append(gossipBlocked, m.Name)
		}
	}
	if len(blocked) > 0 {
		slices.Sort(blocked)
		out = append(out, lb.Problem{Object: node, Reason: lb.HeartbeatsBlocked, Message: fmt.Sprintf(
			"node %s gets no heartbeats from %s on UDP port %d, though their speakers answer gossip: a failover takes seconds",
			node.Name,
			lb.SomeOf(blocked),
			c.HeartbeatPort,
		)})
	}
	if len(gossipBlocked) > 0 {
		slices.Sort(gossipBlocked)
		out = append(out, lb.Problem{Object: node, Reason: lb.HeartbeatsBlocked, Message: fmt.Sprintf(
			"node %s gets no gossip from %s on TCP and UDP port %d, though their heartbeats arrive: it does not learn what they "+
				"can announce, so that an address may have no announcer or two",
			node.Name,
			lb.SomeOf(gossipBlocked),
			c.MembersPort,
		)})
	}
	if len(withoutEcho) > 0 {
		out = append(out, lb.Problem{Object: node, Reason: lb.EchoBlocked, Message: fmt.Sprintf(
			"node %s gets no echo from %s, though their heartbeats arrive: a switch that answers ARP for others may keep "+
				"addresses with a dead node. Speakers of an older version have no echo",
			node.Name,
			lb.SomeOf(withoutEcho),
		)})
	}
	if len(links.unanswered) > 0 {
		out = append(out, lb.Problem{Object: node, Reason: lb.LinkSilent, Message: fmt.Sprintf(
			"node %s receives no answers on %s although the link is up; other nodes announce there",
			node.Name, lb.SomeOf(links.unanswered))})
	}
	if len(links.returned) > 0 {
		out = append(out, lb.Problem{Object: node, Reason: lb.LinkSilent, Message: fmt.Sprintf(
			"node %s leaves links that returned to other nodes until machines have answered there for the time in brackets: %s",
			node.Name,
			lb.SomeOf(links.returned),
		)})
	}
	return out
}
