package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/internal/detect"
	"github.com/holdfast-lb/holdfast/internal/heartbeat"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"github.com/holdfast-lb/holdfast/internal/members"
	"github.com/prometheus/client_golang/prometheus"
)

var membersDesc = prometheus.NewDesc("holdfast_members",
	"Speakers by state as this one knows it, itself included: alive, holdDown, speakerDown, dead, left or unknown.",
	[]string{"state"}, nil)

// Membership is this speaker's place among all speakers. It exists from the start: until its keys and the address of
// this node are known, it knows no other speaker.
type Membership struct {
	// members is nil until the membership has started.
	members atomic.Pointer[members.Members]
	// version is the version of the members' Secret whose keys are in force; nil before the first.
	version atomic.Pointer[string]
	// sent is the metadata that was last sent to the other speakers; nil before the first.
	sent atomic.Pointer[lb.Member]
}

// Ready reports whether the address of every other speaker has been tried once. Before that this node knows only
// itself, and would announce every address.
func (m *Membership) Ready() bool {
	joined := m.members.Load()
	return joined != nil && joined.Joined()
}

// start makes started members the membership, with the metadata of this node.
func (m *Membership) start(started *members.Members, self lb.Member) {
	m.sent.Store(&self)
	started.SetSelf(self)
	m.members.Store(started)
}

// KeysVersion returns the version of the members' Secret whose keys are in force; "" before the first.
func (m *Membership) KeysVersion() string {
	version := m.version.Load()
	if version == nil {
		return ""
	}
	return *version
}

// observe sets the addresses of all speakers, and the links on which this node sends heartbeats, given the address by
// which the others know it.
func (m *Membership) observe(speakers map[string]netip.Addr, links func(own netip.Addr) []heartbeat.Link) {
	joined := m.members.Load()
	if joined == nil {
		return
	}

	joined.SetSpeakers(speakers)
	joined.SetLinks(links(joined.Address()))
}

// send sends metadata of this node to the other speakers.
func (m *Membership) send(self lb.Member) {
	m.sent.Store(&self)
	if joined := m.members.Load(); joined != nil {
		joined.SetSelf(self)
	}
}

// sendStopping sends the last metadata again, with the word that this speaker stops.
func (m *Membership) sendStopping() {
	joined, sent := m.members.Load(), m.sent.Load()
	if joined == nil || sent == nil {
		return
	}

	self := *sent
	self.Stopping = true
	joined.SetSelf(self)
}

// view returns what is known of the speakers; an empty View before the membership has started.
func (m *Membership) view() detect.NodeSets {
	if joined := m.members.Load(); joined != nil {
		return joined.View()
	}
	return detect.NodeSets{}
}

// metadata returns what each speaker sent last; nil before the membership has started.
func (m *Membership) metadata() map[string]lb.Member {
	if joined := m.members.Load(); joined != nil {
		return joined.Metadata()
	}
	return nil
}

// address returns the address by which the other speakers know this one; the zero Addr before the membership has
// started.
func (m *Membership) address() (a netip.Addr) {
	if joined := m.members.Load(); joined != nil {
		return joined.Address()
	}
	return a
}

// confirm says that a whole plan was made by a view.
func (m *Membership) confirm(view detect.NodeSets) {
	if joined := m.members.Load(); joined != nil {
		joined.Confirm(view)
	}
}

// Ask asks another speaker about addresses, if the membership has started.
func (m *Membership) Ask(member string, addrs []netip.Addr, leaves bool) {
	if joined := m.members.Load(); joined != nil {
		joined.Ask(member, addrs, leaves)
	}
}

// Alive returns the metadata of all members that live.
func (m *Membership) Alive() map[string]lb.Member {
	out := map[string]lb.Member{}
	metadata := m.metadata()
	for name := range m.view().Alive {
		out[name] = metadata[name]
	}
	return out
}

// Speakers returns the names of the nodes by the MACs of their speakers' links; nil before the membership has started.
func (m *Membership) Speakers() map[lb.MAC]string {
	metadata := m.metadata()
	if metadata == nil {
		return nil
	}

	nodes := map[lb.MAC]string{}
	for node, member := range metadata {
		for _, l := range member.Links {
			nodes[l.MAC] = "node " + node
		}
	}
	return nodes
}

// Valid implements layer2.Lease: it reports whether the node may act on its last plan.
func (m *Membership) Valid() bool {
	joined := m.members.Load()
	return joined != nil && joined.Valid()
}

// HearsSome reports whether this node hears another speaker well.
func (m *Membership) HearsSome() bool {
	joined := m.members.Load()
	return joined != nil && joined.HearsSome()
}

// Process returns the id of the heartbeat process.
func (m *Membership) Process() (int, error) {
	joined := m.members.Load()
	if joined == nil {
		return 0, errors.New("the membership has not started")
	}
	return joined.Process()
}

// Describe implements prometheus.Collector. It names no metric: some begin when the membership starts.
func (m *Membership) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *Membership) Collect(ch chan<- prometheus.Metric) {
	joined := m.members.Load()
	if joined == nil {
		return
	}

	count := map[detect.Status]int{}
	for _, member := range joined.View().Members {
		count[member.Status]++
	}
	for s := detect.Unknown; s <= detect.Left; s++ {
		ch <- prometheus.MustNewConstMetric(membersDesc, prometheus.GaugeValue, float64(count[s]), s.String())
	}
	joined.Collect(ch)
}

// goneTime is how long the address of the membership must be missing on all links: programs that configure a network
// take addresses away and put them back.
const goneTime = 10 * time.Second

// watchAddress returns an error when the address that the membership is bound to is gone, and the node has another one:
// the kernel sends nothing from the old one. It returns nil when ctx ends. Without another address a new process could
// not begin either.
func watchAddress(ctx context.Context, node string, bound netip.Addr, onLinks, own func() []netip.Addr) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	present := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if slices.Contains(onLinks(), bound) {
			present = time.Now()
			continue
		}
		addresses := own()
		if len(addresses) > 0 && time.Since(present) >= goneTime {
			return fmt.Errorf(
				"the address of node %s changed from %s to %s, to which only a new process binds",
				node,
				bound,
				addresses[0],
			)
		}
	}
}
